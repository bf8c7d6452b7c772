#!/usr/bin/env bash
# Compiles the command line for macOS and Windows without linking it: `cargo check` for each target.
#   packaging/check-targets.sh [TARGET…]
# The standard library of a target comes from rustup. A target that cannot be installed is named with the reason, and
# the script fails. A check links nothing, so a stand-in for the C compiler suffices: no SDK is needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo=${CARGO:-cargo}
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(x86_64-apple-darwin aarch64-apple-darwin x86_64-pc-windows-gnu)

stand_in=$(mktemp -d)
trap 'rm -rf "$stand_in"' EXIT
cat > "$stand_in/cc" <<'CC'
#!/bin/sh
# Creates the output of a compilation, empty. The last word of an archiver call without -o is not an output of ours.
out=
while [ $# -gt 0 ]; do
    case $1 in
    -o) out=$2; shift ;;
    *.a) out=$1 ;;
    esac
    shift
done
[ -z "$out" ] || : > "$out"
CC
chmod +x "$stand_in/cc"

failed=()
for target in "${targets[@]}"; do
    if ! why=$(rustup target add "$target" 2>&1); then
        echo "check-targets: $target cannot be installed: ${why##*error: }" >&2
        failed+=("$target")
        continue
    fi
    variable=${target//-/_}
    if env "CC_$variable=$stand_in/cc" "AR_$variable=$stand_in/cc" SDKROOT="$stand_in" \
        "$cargo" check --locked --quiet -p perennial --bin perennial --target "$target"; then
        echo "check-targets: $target compiles"
    else
        failed+=("$target")
    fi
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "check-targets: failed for ${failed[*]}" >&2
    exit 1
fi
