#!/usr/bin/env bash
# Packages the chart of a release. Its default image is the one in this registry, unlike that of the sources, which no
# registry has.
#   packaging/chart.sh VERSION IMAGE FOLDER     for example v0.1.0 registry.example.com/perennial target/package
# The tag of the image is VERSION. Prints the path of the archive.
set -euo pipefail
[ $# = 3 ] || { echo "usage: chart.sh VERSION IMAGE FOLDER" >&2; exit 1; }
version=$1 image=$2 out=$3
case $image in
*/*) ;;
*) echo "the image $image names no registry" >&2; exit 1 ;;
esac
chart=$(cd "$(dirname "${BASH_SOURCE[0]}")/../charts/perennial" && pwd)

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp -R "$chart" "$dir/perennial"
sed -i '/^image:$/,/^[^ ]/ s|^  repository: perennial$|  repository: '"$image"'|' "$dir/perennial/values.yaml"
grep -qxF "  repository: $image" "$dir/perennial/values.yaml" || { echo "values.yaml has no image.repository" >&2; exit 1; }
mkdir -p "$out"
helm package "$dir/perennial" --version "${version#v}" --app-version "$version" --destination "$out" >/dev/null
echo "$out/perennial-${version#v}.tgz"
