#!/usr/bin/env bash
# Builds static programs and an OCI image of them, and checks that it runs: unpacked, as its user, with nothing around it.
#   packaging/image.sh [--programs-only] [amd64] [arm64]     without an architecture: for this machine
#   FEATURES=otlp packaging/image.sh                         with a feature that is not on by default
# Needs the Rust targets *-unknown-linux-musl (rustup target add …) and a C compiler for them: gcc for this machine, for another
# one clang, zig, or CC_<target> in the environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target_dir=${CARGO_TARGET_DIR:-$PWD/target}
out=$target_dir/package
case $(uname -m) in x86_64) here=amd64 ;; aarch64) here=arm64 ;; *) here=$(uname -m) ;; esac
cargo=${CARGO:-cargo}
build=(build)
# What is in the program is written into it, for `cargo audit bin`, where cargo-auditable is there.
if command -v cargo-auditable >/dev/null; then build=(auditable build); fi

only=
if [ "${1:-}" = --programs-only ]; then only=yes; shift; fi
programs=()
for arch in "${@:-$here}"; do
    case $arch in
        amd64) target=x86_64-unknown-linux-musl zig=x86_64-linux-musl ;;
        arm64) target=aarch64-unknown-linux-musl zig=aarch64-linux-musl ;;
        *) echo "no such architecture: $arch (amd64, arm64)" >&2; exit 1 ;;
    esac
    if [ "$(rustup target list --installed 2>/dev/null | grep -c "^$target$")" = 0 ]; then rustup target add "$target"; fi
    cc=CC_${target//-/_} ar=AR_${target//-/_}
    if [ -z "${!cc:-}" ]; then
        if [ "$arch" = "$here" ]; then
            export "$cc=gcc"
        elif command -v clang >/dev/null; then
            export "$cc=clang"
        elif command -v zig >/dev/null || python3 -c 'import ziglang' 2>/dev/null; then
            zig_bin=$(command -v zig || echo "python3 -m ziglang")
            mkdir -p "$out/cc"
            # The compiler crate names the target in Rust's way, which zig does not know.
            printf '#!/bin/sh\nfor a; do shift; case $a in --target=*) ;; *) set -- "$@" "$a" ;; esac; done\nexec %s cc -target %s "$@"\n' "$zig_bin" "$zig" >"$out/cc/$zig"
            printf '#!/bin/sh\nexec %s ar "$@"\n' "$zig_bin" >"$out/cc/ar"
            chmod +x "$out/cc/$zig" "$out/cc/ar"
            export "$cc=$out/cc/$zig" "$ar=$out/cc/ar"
        else
            echo "a C compiler for $target is needed: clang, zig, or $cc" >&2; exit 1
        fi
    fi
    if [ "$arch" != "$here" ]; then
        # musl and its start files come with Rust, and so does a linker.
        upper=${target//-/_}
        export "CARGO_TARGET_${upper^^}_LINKER=rust-lld"
    fi
    "$cargo" "${build[@]}" --release --locked --target "$target" -p perennial ${FEATURES:+--features "$FEATURES"}
    program=$target_dir/$target/release/perennial
    if [ "${build[0]}" = auditable ] && [ "$(readelf --sections --wide "$program" | grep -c '\.dep-v0')" = 0 ]; then
        echo "$program does not say what is in it" >&2; exit 1
    fi
    programs+=(--program "$arch=$program")
done

if [ -n "$only" ]; then exit; fi

"$cargo" build --quiet --locked -p perennial-package
"$target_dir/debug/package" sbom --features "${FEATURES:-}" --out "$out/perennial.cdx.json"
"$target_dir/debug/package" image "${programs[@]}" --sbom "$out/perennial.cdx.json" --out "$out/perennial-image.tar"
for arch in "${@:-$here}"; do packaging/check-image.sh "$out/perennial-image.tar" "$arch"; done
