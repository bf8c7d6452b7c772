#!/usr/bin/env bash
# Unpacks an image like a container runtime and runs it as its user in its own root.
#   packaging/check-image.sh IMAGE.tar ARCH
# Uses qemu-user-static for another architecture, if it is installed.
set -euo pipefail
image=$1 arch=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/layout" "$dir/root"
tar -xf "$image" -C "$dir/layout"

blob() { echo "$dir/layout/blobs/${1/://}"; }
checked() {
    file=$(blob "$1")
    [ "sha256:$(sha256sum "$file" | cut -d' ' -f1)" = "$1" ] || { echo "digest mismatch: $1" >&2; exit 1; }
    echo "$file"
}
field() { python3 -c 'import json,sys; v=json.load(open(sys.argv[1]))
for k in sys.argv[2:]: v=v[int(k)] if isinstance(v,list) else v[k]
print(v if isinstance(v,str) else json.dumps(v))' "$@"; }

manifest=$(checked "$(field "$dir/layout/index.json" manifests 0 digest)")
if [ "$(field "$manifest" mediaType)" = application/vnd.oci.image.index.v1+json ]; then
    number=0
    until [ "$(field "$manifest" manifests $number platform architecture)" = "$arch" ]; do number=$((number + 1)); done
    manifest=$(checked "$(field "$manifest" manifests $number digest)")
fi
config=$(checked "$(field "$manifest" config digest)")
layer=$(checked "$(field "$manifest" layers 0 digest)")
tar -xf "$layer" -C "$dir/root"
user=$(field "$config" config User)
program=$(field "$config" config Entrypoint 0)
echo "user $user, program $program, $(find "$dir/root" -type f | wc -l) files"
if find "$dir/root" -name sh -o -name bash | grep -q .; then echo "the image contains a shell" >&2; exit 1; fi

# The dependencies listed in the binary (cargo-auditable) must be in the SBOM.
python3 - "$dir/root$program" "$dir/root/usr/share/perennial/sbom.cdx.json" <<'PYTHON'
import json, struct, sys, zlib
program = open(sys.argv[1], "rb").read()
at, size, count, names = struct.unpack_from("<Q", program, 40) + struct.unpack_from("<HHH", program, 58)
sections = [struct.unpack_from("<IIQQQQ", program, at + each * size) for each in range(count)]
text = program[sections[names][4]:] if sections else b""
dependencies = [s for s in sections if text.startswith(b".dep-v0\0", s[0])]
if not dependencies:
    print("the program does not contain its list of dependencies")
    sys.exit()
packages = json.loads(zlib.decompress(program[dependencies[0][4]:dependencies[0][4] + dependencies[0][5]]))["packages"]
linked = {(p["name"], p["version"]) for p in packages if p.get("kind", "runtime") == "runtime" and not p.get("root")}
listed = {(c["name"], c["version"]) for c in json.load(open(sys.argv[2]))["components"]}
print(f"{len(linked)} crates are in the program, {len(listed)} in its SBOM")
if missing := sorted(linked - listed):
    sys.exit(f"not in the SBOM: {missing}")
PYTHON

case $arch in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; *) machine=$arch ;; esac
emulated=()
if [ "$machine" != "$(uname -m)" ]; then
    if ! emulator=$(command -v "qemu-$machine-static"); then
        echo "skipped running the image for $arch: qemu-user-static is not installed"
        exit
    fi
    install -m 0755 "$emulator" "$dir/root/.emulator"
    emulated=(/.emulator)
fi

# Runs the image alone, as its user: no libc, no shell, no writable files. chroot needs root or a user namespace.
chmod -R go+rX "$dir"
run() {
    if [ "$(id -u)" = 0 ]; then
        chroot --userspec="$user" --groups= "$dir/root" ${emulated[@]+"${emulated[@]}"} "$program" "$@"
    else
        unshare --user --map-root-user chroot "$dir/root" ${emulated[@]+"${emulated[@]}"} "$program" "$@"
    fi
}
run --version
run simulate --help >/dev/null
# The operator starts and reports the missing kubeconfig.
output=$(run run --kubeconfig /nowhere 2>&1) && { echo "the operator ran without a cluster" >&2; exit 1; }
grep -q 'could not read the kubeconfig /nowhere' <<<"$output" || { echo "$output" >&2; exit 1; }
echo "the image for $arch runs"
