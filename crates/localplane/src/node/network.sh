# Network between the real nodes, in a namespace of its own. Arguments: the address of the API
# server for pods, the address of the gateway, the file that reports success.
set -e
rm -f "$3"
ip link set lo up
ip address add "$1/32" dev lo
ip link add nodes type bridge
ip address add "$2/24" dev nodes
ip link set nodes up
echo 1 > /proc/sys/net/ipv4/ip_forward
: > "$3"
exec sleep 2147483647
