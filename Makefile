# All targets need only Rust and Go. Other tools are downloaded or built once if they are missing.

CARGO ?= cargo
BENCH ?= full
SEEDS ?= 3000
HISTORIES ?= 2000
MINUTES ?= 10
SIM := $(CARGO) run --locked --quiet --profile sim -p perennial-sim --
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
TOOLS := $(TARGET)/tools
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
export PATH := $(TOOLS)/bin:$(PATH)
# Shipped binaries contain their list of dependencies.
AUDITABLE = $(if $(shell PATH="$(PATH)" command -v cargo-auditable),,$(TOOLS)/bin/cargo-auditable)

.DEFAULT_GOAL := help
.PHONY: help demo up down pictures test sim soak bench lint format docs manifests image deb krew kind-up kind-down clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Run the demo on a local Kubernetes, check every claim, clean up
	@$(CARGO) build --locked -p perennial-demo
	@$(CARGO) run --locked --quiet -p perennial-demo

up: ## Start a local Kubernetes with Perennial and leave it running
	@$(CARGO) build --locked -p perennial-up
	@$(CARGO) run --locked --quiet -p perennial-up -- start

down: ## Stop what `make up` started
	@$(CARGO) run --locked --quiet -p perennial-up -- stop

test: ## Run all tests: unit, property, simulated histories, and on a real Kubernetes
	$(CARGO) test --workspace --exclude perennial-sim --locked --no-fail-fast
	$(CARGO) test --locked --profile sim -p perennial-sim # histories are slow without optimization
	$(TARGET)/sim/sim --seeds $(HISTORIES)

sim: ## Run simulated histories: SEEDS=count or range; SEED=n for one with its log; MUTATIONS=1
	@$(CARGO) build --locked --profile sim -p perennial-sim
	@$(SIM) $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(MUTATIONS),--mutations)

soak: ## Run random operations on a local Kubernetes and check them: MINUTES=n, SEED=n
	@$(CARGO) build --locked -p perennial-soak -p perennial-tests --bin soak --bin operator-under-test
	@$(CARGO) run --locked --quiet -p perennial-soak -- $(MINUTES) $(SEED)

bench: ## Run the benchmarks on a local Kubernetes; BENCH=quick for a few minutes
	@$(CARGO) build --locked --release -p perennial-bench -p perennial-tests --no-default-features --bin bench --bin operator-under-test
	@$(TARGET)/release/bench $(BENCH)

lint: $(if $(shell PATH="$(PATH)" command -v cargo-deny),,$(TOOLS)/bin/cargo-deny) ## Check format, code and dependencies; warnings are errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) check --locked --quiet -p perennial # as shipped: tests enable additional features
	$(CARGO) deny --locked --log-level error check --hide-inclusion-graph bans licenses sources
	@if $(CARGO) deny --locked fetch db >/dev/null 2>&1; \
	then $(CARGO) deny --locked --log-level error check --disable-fetch advisories; \
	else echo "advisories were not checked: the database could not be fetched"; fi

format: ## Format the code
	$(CARGO) fmt --all

pictures: ## Create the pictures in docs/images from real runs; needs Chromium
	@$(CARGO) build --locked -p perennial-pictures -p perennial-tests --bin pictures --bin operator-under-test
	@$(CARGO) run --locked --quiet -p perennial-pictures

docs: ## Generate docs/cli.md and the tables of docs/configuration.md
	UPDATE_DOCS=1 $(CARGO) test --quiet -p perennial-core --lib reference
	UPDATE_DOCS=1 $(CARGO) test --quiet -p perennial --lib reference

manifests: ## Generate deploy/ and charts/perennial/files
	UPDATE_MANIFESTS=1 $(CARGO) test --quiet --locked -p perennial --lib manifests

image: $(AUDITABLE) ## Build an OCI image without Docker and check that it runs; ARCHS="amd64 arm64"
	@CARGO="$(CARGO)" packaging/image.sh $(ARCHS)

deb: $(AUDITABLE) ## Build a Debian package with a hardened service
	@CARGO="$(CARGO)" packaging/deb.sh

krew: $(AUDITABLE) ## Build the krew archives and manifest of the kubectl plugin for amd64 and arm64
	@CARGO="$(CARGO)" packaging/image.sh --programs-only amd64 arm64
	@packaging/krew.sh v$(VERSION) $(TARGET)/package $(foreach arch,amd64=x86_64 arm64=aarch64,$(firstword $(subst =, ,$(arch)))=$(TARGET)/$(lastword $(subst =, ,$(arch)))-unknown-linux-musl/release/perennial)

kind-up: ## Create a kind cluster with Perennial; needs Docker and kind
	packaging/kind.sh up

kind-down: ## Delete the kind cluster
	packaging/kind.sh down

clean: ## Remove all build output
	$(CARGO) clean

# Built without optimization and debug information: one minute on two cores.
$(TOOLS)/bin/cargo-deny:
	CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=$(TOOLS)/build \
		$(CARGO) install cargo-deny --version 0.20.2 --locked --debug --root $(TOOLS)
	rm -rf $(TOOLS)/build

$(TOOLS)/bin/cargo-auditable:
	CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=$(TOOLS)/build \
		$(CARGO) install cargo-auditable --version 0.7.7 --locked --debug --root $(TOOLS)
	rm -rf $(TOOLS)/build
