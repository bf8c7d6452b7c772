# All targets need only Rust and Go. Other tools are downloaded or built once if they are missing.

CARGO ?= cargo
BENCH ?= full
FRESH ?= 3000
HISTORIES ?= 2000
MINUTES ?= 10
SIM := $(CARGO) run --locked --quiet --profile sim -p perennial-sim --
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
TOOLS := $(TARGET)/tools
REPOSITORY := https://github.com/perennial-dev/perennial
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# Tests that are skipped, with the reason.
export SKIPPED_TESTS := $(TARGET)/skipped.tsv
export PATH := $(TOOLS)/bin:$(PATH)
# Shipped binaries contain their list of dependencies.
AUDITABLE = $(if $(shell PATH="$(PATH)" command -v cargo-auditable),,$(TOOLS)/bin/cargo-auditable)

.DEFAULT_GOAL := help
.PHONY: help demo up down monitoring run pictures test sim soak bench lint format docs site manifests image deb krew kind-up kind-down clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Run the demo on a local Kubernetes, check every claim, clean up; REAL=1 with real nodes, as root
	@$(CARGO) build --locked -p perennial-demo
	@$(CARGO) run --locked --quiet -p perennial-demo

up: ## Start a local Kubernetes with Perennial and leave it running
	@$(CARGO) build --locked -p perennial-up
	@$(CARGO) run --locked --quiet -p perennial-up -- start

monitoring: ## Start Prometheus with the alerts on the operator of `make up`; PROMETHEUS_PORT=n
	@packaging/monitoring.sh

down: ## Stop what `make up` started
	@$(CARGO) run --locked --quiet -p perennial-up -- stop

run: ## Run the operator against the cluster of your kubeconfig; asks first. ARGS=--dry-run writes nothing
	@$(CARGO) build --locked -p perennial
	@context=$$(kubectl config current-context 2>/dev/null || echo "the default cluster"); \
	printf 'Run Perennial against %s with your permissions? [y/N] ' "$$context"; read answer; \
	case $$answer in y|Y|yes) exec $(TARGET)/debug/perennial run $(ARGS) ;; *) echo "Nothing was started." ;; esac

# The result of `make test` does not depend on luck. PROPTEST_RNG_SEED=n draws other cases.
test: export PROPTEST_RNG_SEED ?= 1
test: ## Run all tests: unit, property, simulated histories, and on a real Kubernetes; MATRIX=1 on older versions too, FULL=1 long forms
	@rm -f $(SKIPPED_TESTS)
	$(CARGO) test --workspace --exclude perennial-sim --locked --no-fail-fast
	$(CARGO) test --locked --profile sim -p perennial-sim # histories are slow without optimization
	$(TARGET)/sim/sim --seeds $(HISTORIES)
	$(if $(MATRIX),CARGO="$(CARGO)" packaging/matrix.sh)
	@packaging/skipped.sh $(SKIPPED_TESTS)

sim: ## Run simulated histories with new seeds: FRESH=count; SEEDS=range; SEED=n for one with its log; MUTATIONS=1
	@$(CARGO) build --locked --profile sim -p perennial-sim
	@$(SIM) $(if $(SEED),--seed $(SEED),$(if $(SEEDS),--seeds $(SEEDS),--fresh $(FRESH))) $(if $(MUTATIONS),--mutations)

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

docs: ## Generate docs/reference/cli.md, the tables of docs/reference/configuration.md and missing lines of docs/SUMMARY.md
	UPDATE_DOCS=1 $(CARGO) test --quiet -p perennial-core --lib reference
	UPDATE_DOCS=1 $(CARGO) test --quiet -p perennial --lib reference
	UPDATE_DOCS=1 $(CARGO) test --quiet -p perennial --test documentation summary

# Links to files outside of docs lead to the repository; mdBook calls a README index.
site: $(if $(shell PATH="$(PATH)" command -v mdbook),,$(TOOLS)/bin/mdbook) ## Build the documentation as a site: target/site/html/index.html
	@rm -rf target/site && mkdir -p target/site && cp -r docs target/site/source
	@sed -i 's|](\.\./\.\./|]($(REPOSITORY)/blob/main/|g' target/site/source/*/*.md
	@sed -i 's|](\.\./|]($(REPOSITORY)/blob/main/|g' target/site/source/*.md
	@sed -i -E 's#(\]\((\.\./)?([a-z-]+/)?)README\.md#\1index.md#g' $$(find target/site/source -name '*.md' ! -name SUMMARY.md)
	@mdbook build
	@echo "target/site/html/index.html"

manifests: ## Generate deploy/ and charts/perennial/files
	UPDATE_MANIFESTS=1 $(CARGO) test --quiet --locked -p perennial --lib manifests

image: $(AUDITABLE) ## Build an OCI image without Docker and check that it runs; ARCHS="amd64 arm64"
	@CARGO="$(CARGO)" packaging/image.sh $(ARCHS)

deb: $(AUDITABLE) ## Build a Debian package with a hardened service
	@CARGO="$(CARGO)" packaging/deb.sh

krew: $(AUDITABLE) ## Build the krew archives and manifest of the kubectl plugin for Linux; KREW="darwin-arm64=PROGRAM …" adds others
	@CARGO="$(CARGO)" packaging/image.sh --programs-only amd64 arm64
	@packaging/krew.sh v$(VERSION) $(TARGET)/package linux-amd64=$(TARGET)/x86_64-unknown-linux-musl/release/perennial \
		linux-arm64=$(TARGET)/aarch64-unknown-linux-musl/release/perennial $(KREW)

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

$(TOOLS)/bin/mdbook:
	CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=$(TOOLS)/build \
		$(CARGO) install mdbook --version 0.5.4 --locked --debug --no-default-features --features search --root $(TOOLS)
	rm -rf $(TOOLS)/build
