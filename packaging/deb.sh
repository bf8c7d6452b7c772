#!/usr/bin/env bash
# Builds a Debian package with a static binary for this architecture.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target_dir=${CARGO_TARGET_DIR:-$PWD/target}
case $(uname -m) in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) echo "no package for $(uname -m)" >&2; exit 1 ;; esac
packaging/image.sh --programs-only "$arch"
"${CARGO:-cargo}" build --quiet --locked -p perennial-package
program=$target_dir/$(uname -m)-unknown-linux-musl/release/perennial
"$target_dir/debug/package" deb --program "$arch=$program" --native "$program" --out "$target_dir/package/perennial_$arch.deb"
