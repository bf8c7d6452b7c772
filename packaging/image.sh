#!/usr/bin/env bash
# Builds static binaries and an OCI image, and checks that the unpacked image runs as its user.
#   packaging/image.sh [--programs-only] [amd64] [arm64]     default: the architecture of this machine
#   FEATURES=otlp packaging/image.sh                         with an optional feature
# Needs gcc for this architecture; rustup installs the Rust targets *-unknown-linux-musl. Another architecture needs a C
# cross compiler: CC_<target> in the environment, clang or zig. If there is none, zig is installed with pip.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target_dir=${CARGO_TARGET_DIR:-$PWD/target}
out=$target_dir/package
case $(uname -m) in x86_64) here=amd64 ;; aarch64) here=arm64 ;; *) here=$(uname -m) ;; esac
cargo=${CARGO:-cargo}
build=(build)
# With cargo-auditable, the binary contains its list of dependencies, for `cargo audit bin`.
if command -v cargo-auditable >/dev/null; then build=(auditable build); fi

# Prints the command line of zig. Installs zig with pip if it is missing.
zig_program() {
    local own=$target_dir/tools/zig
    if command -v zig; then return; fi
    if python3 -c 'import ziglang' 2>/dev/null; then echo "python3 -m ziglang"; return; fi
    if [ ! -e "$own/ziglang" ]; then
        rm -rf "$own.partial"
        python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$own.partial" \
            --require-hashes --requirement packaging/zig.txt >&2 || return
        rm -rf "$own" && mv "$own.partial" "$own"
    fi
    printf 'env PYTHONPATH=%q python3 -m ziglang\n' "$own"
}

only=
if [ "${1:-}" = --programs-only ]; then only=yes; shift; fi
if [ -z "$only" ]; then "$cargo" build --quiet --locked -p perennial-package; fi
programs=()
for arch in "${@:-$here}"; do
    case $arch in
        amd64) target=x86_64-unknown-linux-musl zig=x86_64-linux-musl ;;
        arm64) target=aarch64-unknown-linux-musl zig=aarch64-linux-musl ;;
        *) echo "unknown architecture $arch: expected amd64 or arm64" >&2; exit 1 ;;
    esac
    if [ "$(rustup target list --installed 2>/dev/null | grep -c "^$target$")" = 0 ]; then rustup target add "$target"; fi
    cc=CC_${target//-/_} ar=AR_${target//-/_}
    if [ -z "${!cc:-}" ]; then
        if [ "$arch" = "$here" ]; then
            export "$cc=gcc"
        elif command -v clang >/dev/null; then
            export "$cc=clang"
        elif zig_bin=$(zig_program); then
            mkdir -p "$out/cc"
            # The cc crate passes the target in Rust's notation, which zig does not accept.
            printf '#!/bin/sh\nfor a; do shift; case $a in --target=*) ;; *) set -- "$@" "$a" ;; esac; done\nexec %s cc -target %s "$@"\n' "$zig_bin" "$zig" >"$out/cc/$zig"
            printf '#!/bin/sh\nexec %s ar "$@"\n' "$zig_bin" >"$out/cc/ar"
            chmod +x "$out/cc/$zig" "$out/cc/ar"
            export "$cc=$out/cc/$zig" "$ar=$out/cc/ar"
        else
            echo "no C compiler for $target: install clang or zig, or pip to install zig, or set $cc" >&2; exit 1
        fi
    fi
    if [ "$arch" != "$here" ]; then
        # Rust provides musl, its start files and a linker.
        upper=${target//-/_}
        export "CARGO_TARGET_${upper^^}_LINKER=rust-lld"
    fi
    "$cargo" "${build[@]}" --release --locked --target "$target" -p perennial ${FEATURES:+--features "$FEATURES"}
    program=$target_dir/$target/release/perennial
    if [ "${build[0]}" = auditable ] && [ "$(readelf --sections --wide "$program" | grep -c '\.dep-v0')" = 0 ]; then
        echo "$program does not contain its list of dependencies" >&2; exit 1
    fi
    programs+=(--program "$arch=$program")
    if [ -z "$only" ]; then
        "$target_dir/debug/package" sbom --target "$target" --features "${FEATURES:-}" --out "$out/perennial-$arch.cdx.json"
        programs+=(--sbom "$arch=$out/perennial-$arch.cdx.json")
    fi
done

if [ -n "$only" ]; then exit; fi

"$target_dir/debug/package" image "${programs[@]}" --out "$out/perennial-image.tar"
for arch in "${@:-$here}"; do packaging/check-image.sh "$out/perennial-image.tar" "$arch"; done
