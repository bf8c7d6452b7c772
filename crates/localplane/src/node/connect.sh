# Connects a node to the network between the nodes. Arguments: the processes that hold the network
# and the node, the name of the link, the address of the node, of its pods and of the gateway.
set -e
network="nsenter --net=/proc/$1/ns/net --"
node="nsenter --net=/proc/$2/ns/net --"
# A link of an earlier network; its other end is deleted with it.
if $node ip link show eth0 > /dev/null 2>&1; then $node ip link delete eth0; fi
$network ip link add "$3" type veth peer name eth0 netns "$2"
$network ip link set "$3" master nodes up
$node ip address add "$4/24" dev eth0
$node ip link set eth0 up
$node ip route add default via "$6"
$network ip route replace "$5" via "$4"
