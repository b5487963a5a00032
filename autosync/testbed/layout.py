"""The emulated cluster as data: the namespace, address and switch port of each node, and the commands that build it.

Nothing here runs a command. All interfaces are in the testbed's own namespaces and none is on the machine itself, so
their names are the same in every testbed and never clash:

    eth0 in a host's namespace --- host0, host1 ... in the switch's namespace, on a bridge
    uplink0, uplink1 ...       --- downlink0, downlink1 ... from a rack's bridge (rack0 ...) to the spine or its pod's

Each end of a link limits the rate at which it sends: eth0 to the node's rate out, hostN to the node's rate in; likewise
uplink and downlink.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autosync import jsonio
from autosync.errors import InputError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import dump_cluster
from autosync.specs.shaping import MTU_BYTES, bucket, packet_bytes
from autosync.testbed.commands import ToolCall

PREFIX = "autosync-"
INTERFACE = "eth0"
MAX_HOSTS = 250
NUM_SLOTS = 256

# Part of each key, so that a testbed that an older version built is not used.
_VERSION = 1
# All links of a switch form a group, so that one command deletes them and waits until both ends are gone.
_GROUP = 77
_QUIET = "addrgenmode none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The network of one node; rates are bytes per second."""

    node: str
    namespace: str
    address: str
    port: str
    bandwidth_out: float
    bandwidth_in: float
    bridge: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink:
    """A rack's link to the spine, or to its pod: `above` is the bridge at its upper end, with the port `upper_port`."""

    rack: str
    bridge: str
    port: str
    above: str
    upper_port: str
    out: float
    into: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLayout:
    """The network of one testbed. `key` is a hash of the cluster file; `slot` chooses the subnet."""

    name: str
    key: str
    slot: int
    hosts: tuple[Host, ...]
    uplinks: tuple[Uplink, ...]

    @property
    def switch(self) -> str:
        return f"{PREFIX}{self.key}-switch"

    @property
    def namespaces(self) -> tuple[str, ...]:
        return (self.switch, *(host.namespace for host in self.hosts))


def cluster_key(cluster: ClusterSpec) -> str:
    """Return a hash of the cluster file without its calibration."""
    return jsonio.content_hash([_VERSION, dump_cluster(replace(cluster, calibration=None, costs=None))], length=8)


def plan_layout(cluster: ClusterSpec, slot: int) -> NetworkLayout:
    """Return the layout of a cluster. `slot` chooses the subnet, 10.77.SLOT.0/24."""
    if len(cluster.nodes) > MAX_HOSTS:
        rule = f"a testbed has at most {MAX_HOSTS} hosts, all on one machine"
        raise InputError(f"{cluster.name} has {len(cluster.nodes)} nodes", rule=rule)
    key = cluster_key(cluster)
    racks = {rack.name: f"rack{index}" for index, rack in enumerate(cluster.racks)}
    return NetworkLayout(
        name=cluster.name,
        key=key,
        slot=slot,
        hosts=tuple(
            Host(
                node=node.name,
                namespace=host_namespace(key, index),
                address=f"10.77.{slot}.{index + 1}",
                port=f"host{index}",
                bandwidth_out=node.bandwidth_out,
                bandwidth_in=node.bandwidth_in,
                bridge="spine" if node.rack is None else racks[node.rack],
            )
            for index, node in enumerate(cluster.nodes)
        ),
        uplinks=tuple(
            Uplink(
                rack=rack.name,
                bridge=racks[rack.name],
                port=f"uplink{index}",
                above="spine" if rack.rack is None else racks[rack.rack],
                upper_port=f"downlink{index}",
                out=rack.uplink_out,
                into=rack.uplink_in,
            )
            for index, rack in enumerate(cluster.racks)
        ),
    )


def host_namespace(key: str, index: int) -> str:
    """Return the namespace of the node at that position, which is known before the testbed is up."""
    return f"{PREFIX}{key}-{index}"


def build_calls(layout: NetworkLayout) -> tuple[ToolCall, ...]:
    """Return the commands that build a testbed, in order."""
    names = ToolCall(tool="ip", lines=tuple(f"netns add {name}" for name in layout.namespaces))
    switch = ToolCall(tool="ip", namespace=layout.switch, lines=tuple(_switch_lines(layout)))
    shaped = [line for uplink in layout.uplinks for line in _uplink_rates(uplink)]
    shaped += [_shape(host.port, host.bandwidth_in) for host in layout.hosts]
    rates = ToolCall(tool="tc", namespace=layout.switch, lines=tuple(shaped))
    return (names, switch, rates, *(call for host in layout.hosts for call in _host_calls(layout, host)))


def removal_calls(switch: str, namespaces: tuple[str, ...]) -> tuple[ToolCall, ...]:
    """Return the commands that remove these namespaces and the switch's links, as far as they exist.

    Links are deleted first, because deleting a namespace is asynchronous, while both ends of a link are gone when the
    command that deletes it returns.
    """
    links = ToolCall(tool="ip", namespace=switch, lines=(f"link delete group {_GROUP}",), may_fail=True)
    names = ToolCall(tool="ip", lines=tuple(f"netns delete {name}" for name in namespaces), may_fail=True)
    return ((links,) if switch in namespaces else ()) + ((names,) if namespaces else ())


def link_call(layout: NetworkLayout, host: Host, *, up: bool) -> ToolCall:
    """Return the call that sets a host's link up or down at the switch."""
    return ToolCall(tool="ip", namespace=layout.switch, lines=(f"link set {host.port} {'up' if up else 'down'}",))


def rate_calls(layout: NetworkLayout, host: Host, *, out: float, into: float) -> tuple[ToolCall, ...]:
    """Return the commands that give a host's link other rates, in bytes per second."""
    return (
        ToolCall(tool="tc", namespace=host.namespace, lines=(_shape(INTERFACE, out, change="replace"),)),
        ToolCall(tool="tc", namespace=layout.switch, lines=(_shape(host.port, into, change="replace"),)),
    )


def _switch_lines(layout: NetworkLayout) -> Iterator[str]:
    for bridge in ("spine", *(uplink.bridge for uplink in layout.uplinks)):
        yield f"link add name {bridge} mtu {MTU_BYTES} group {_GROUP} type bridge mcast_snooping 0"
        yield f"link set {bridge} up {_QUIET}"
    for uplink in layout.uplinks:
        yield _pair(uplink.port, f"name {uplink.upper_port} mtu {MTU_BYTES}")
        yield f"link set {uplink.port} master {uplink.bridge} up {_QUIET}"
        yield f"link set {uplink.upper_port} master {uplink.above} up {_QUIET}"
    for host in layout.hosts:
        yield _pair(host.port, f"name {INTERFACE} mtu {MTU_BYTES} netns {host.namespace}")
        yield f"link set {host.port} master {host.bridge} up {_QUIET}"


def _pair(port: str, peer: str) -> str:
    return f"link add name {port} mtu {MTU_BYTES} group {_GROUP} type veth peer {peer}"


def _uplink_rates(uplink: Uplink) -> Iterator[str]:
    yield _shape(uplink.port, uplink.out)
    yield _shape(uplink.upper_port, uplink.into)


def _host_calls(layout: NetworkLayout, host: Host) -> Iterator[ToolCall]:
    subnet = f"10.77.{layout.slot}.0/24"
    lines = (
        "link set lo up",
        f"link set {INTERFACE} up {_QUIET} gso_max_size {packet_bytes(host.bandwidth_out)}",
        f"address add {host.address}/24 dev {INTERFACE} noprefixroute",
        # Every kernel has reno. BBR, the default of some machines, paces its packets and stays far below slow rates.
        f"route add {subnet} dev {INTERFACE} src {host.address} congctl reno",
    )
    yield ToolCall(tool="ip", namespace=host.namespace, lines=lines)
    yield ToolCall(tool="tc", namespace=host.namespace, lines=(_shape(INTERFACE, host.bandwidth_out),))


def _shape(port: str, rate: float, *, change: str = "add") -> str:
    return f"qdisc {change} dev {port} root {bucket(rate)}"
