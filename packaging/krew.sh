#!/usr/bin/env bash
# Builds the archives of the kubectl plugin and krew's manifest with their checksums. The output is reproducible.
#   packaging/krew.sh VERSION FOLDER linux-amd64=PROGRAM linux-arm64=PROGRAM darwin-arm64=PROGRAM windows-amd64=PROGRAM …
# Then: kubectl krew install --manifest=FOLDER/perennial.yaml --archive=FOLDER/perennial-linux-amd64.tar.gz
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$1 out=$2
shift 2
[ $# -gt 0 ] || { echo "usage: krew.sh VERSION FOLDER OS-ARCH=PROGRAM …" >&2; exit 1; }

mkdir -p "$out"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
manifest=$out/perennial.yaml
releases=https://github.com/perennial-dev/perennial/releases/download
sed -e '/^#/d' -e "s/VERSION/$version/g" "$here/krew.yaml" >"$dir/manifest"
for build in "$@"; do
    platform=${build%%=*} program=${build#*=}
    os=${platform%-*} arch=${platform#*-} bin=perennial
    case $platform in
    linux-amd64 | linux-arm64 | darwin-amd64 | darwin-arm64) ;;
    windows-amd64) bin=perennial.exe ;;
    *) echo "unknown platform $platform" >&2; exit 1 ;;
    esac
    [ -f "$program" ] || { echo "a program is missing: $program for $platform" >&2; exit 1; }
    name=perennial-$platform.tar.gz
    install -m 0755 "$program" "$dir/$bin"
    install -m 0644 "$here/../LICENSE" "$dir/LICENSE"
    tar --create --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$dir" LICENSE "$bin" | gzip -n >"$out/$name"
    cat >>"$dir/manifest" <<PLATFORM
  - selector:
      matchLabels: {os: $os, arch: $arch}
    uri: $releases/$version/$name
    sha256: $(sha256sum "$out/$name" | cut -d' ' -f1)
    bin: $bin
PLATFORM
    echo "$out/$name"
done
mv "$dir/manifest" "$manifest"
echo "$manifest"
