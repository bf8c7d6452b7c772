# Process 1 of a real node. Arguments: the folder of the plane, the folder of the node, the name of
# the node.
set -e
rm -f "$2/ready"
cd "$1"
echo "$3" > /proc/sys/kernel/hostname
# Volumes are mounted by the kubelet and seen by containers. The namespace is private, so nothing
# reaches the mounts of the machine.
mount --make-rshared /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/var /run/var-work
mount -t overlay -o lowerdir=/var,upperdir=/run/var,workdir=/run/var-work overlay /var
case "$1/" in
/run/* | /var/*)
    # The folder of the plane is hidden now; the working directory still refers to it.
    mkdir -p "$1"
    mount -c --bind /proc/self/cwd "$1"
    ;;
esac
# Each node is another machine. The file in /var may be a link to the one in /etc, which must not be
# written.
if [ -e /etc/machine-id ]; then mount --bind "$2/machine-id" /etc/machine-id; fi
mkdir -p /var/lib/dbus
rm -f /var/lib/dbus/machine-id
cp "$2/machine-id" /var/lib/dbus/machine-id
if [ -e /sys/class/dmi/id/product_uuid ]; then mount --bind "$2/system-uuid" /sys/class/dmi/id/product_uuid; fi
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
: > "$2/ready"
# Processes without a parent are children of process 1; `wait` reaps them.
sleep 2147483647 &
wait "$!"
