#!/usr/bin/env bash
# Builds the archives of the kubectl plugin and krew's manifest with their checksums. The output is reproducible.
#   packaging/krew.sh VERSION FOLDER amd64=PROGRAM arm64=PROGRAM
# Then: kubectl krew install --manifest=FOLDER/perennial.yaml --archive=FOLDER/perennial-linux-amd64.tar.gz
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$1 out=$2
shift 2

mkdir -p "$out"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
manifest=$out/perennial.yaml
sed -e '/^#/d' -e "s/VERSION/$version/g" "$here/krew.yaml" >"$manifest"
for build in "$@"; do
    arch=${build%%=*} program=${build#*=}
    archive=$out/perennial-linux-$arch.tar.gz
    install -m 0755 "$program" "$dir/perennial"
    install -m 0644 "$here/../LICENSE" "$dir/LICENSE"
    tar --create --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$dir" LICENSE perennial | gzip -n >"$archive"
    sum=$(sha256sum "$archive" | cut -d' ' -f1)
    sed -i "s/SHA256_${arch^^}/$sum/" "$manifest"
    echo "$archive"
done
if grep -n SHA256_ "$manifest"; then echo "a program is missing for these lines of $manifest" >&2; exit 1; fi
echo "$manifest"
