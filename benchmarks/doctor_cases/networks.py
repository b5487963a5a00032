"""Faults of an emulated cluster's network that its file does not tell of: slow links, uplinks, wrong interfaces."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autosync import testbed
from autosync.specs.cluster import ClusterSpec
from autosync.specs.shaping import MTU_BYTES, bucket, packet_bytes
from autosync.testbed import Testbed
from autosync.testbed.commands import Runner, ToolCall
from autosync.testbed.layout import INTERFACE, Host
from autosync.testbed.requirements import find_folders

SIDE_INTERFACE = "side0"
"""The name of a second, slow interface of a host."""

_SIDE_BRIDGE = "side"
_CHILD = "77:"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPort:
    """The link of a node, or the uplink of a rack, has this rate in both directions. The file says more."""

    kind: Literal["node", "rack"]
    name: str
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRoute:
    """The traffic of one node takes a second, slow interface, because a route says so."""

    node: str
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SideNetwork:
    """Every node has a second interface on a slow network of its own. A script may choose it by mistake."""

    rate: float


Fault: TypeAlias = SlowPort | SideRoute | SideNetwork


@contextlib.contextmanager
def with_fault(cluster: ClusterSpec, fault: Fault | None) -> Iterator[None]:
    """Keep the testbed of a cluster up with a fault in its network, as long as the block runs."""
    if fault is None:
        yield
        return
    with testbed.up(cluster) as bed:
        runner = Runner(enter=find_folders().manage(bed.layout.key))
        try:
            for call in _calls(bed, runner, fault):
                runner.run(call)
            yield
        finally:
            for call in _removals(bed, fault):
                runner.run(call)


def _calls(bed: Testbed, runner: Runner, fault: Fault) -> Iterator[ToolCall]:
    if isinstance(fault, SlowPort):
        for namespace, port in _ports(bed, fault):
            yield _limit(runner, namespace, port, fault.rate)
    elif isinstance(fault, SideRoute):
        host = _host(bed, fault.node)
        yield from _side_pair(bed, host, host.bridge, fault.rate)
        # Other hosts find the address behind the second interface, because the first one answers no longer.
        lines = (
            f"route replace {_subnet(bed)} dev {SIDE_INTERFACE} src {host.address} congctl reno",
            f"link set {INTERFACE} arp off",
        )
        yield ToolCall(tool="ip", namespace=host.namespace, lines=lines)
    else:
        bridge = (
            f"link add name {_SIDE_BRIDGE} mtu {MTU_BYTES} type bridge mcast_snooping 0",
            f"link set {_SIDE_BRIDGE} up addrgenmode none",
        )
        yield ToolCall(tool="ip", namespace=bed.layout.switch, lines=bridge)
        for number, host in enumerate(bed.layout.hosts):
            yield from _side_pair(bed, host, _SIDE_BRIDGE, fault.rate)
            subnet = f"10.78.{bed.layout.slot}"
            lines = (
                f"address add {subnet}.{number + 1}/24 dev {SIDE_INTERFACE} noprefixroute",
                f"route add {subnet}.0/24 dev {SIDE_INTERFACE} src {subnet}.{number + 1} congctl reno",
            )
            yield ToolCall(tool="ip", namespace=host.namespace, lines=lines)


def _removals(bed: Testbed, fault: Fault) -> Iterator[ToolCall]:
    """Yield the calls that remove added links; the testbed's own links end with it."""
    if isinstance(fault, SlowPort):
        return
    hosts = [_host(bed, fault.node)] if isinstance(fault, SideRoute) else bed.layout.hosts
    lines = [f"link delete {_side_port(host)}" for host in hosts]
    if isinstance(fault, SideNetwork):
        lines.append(f"link delete {_SIDE_BRIDGE}")
    yield ToolCall(tool="ip", namespace=bed.layout.switch, lines=tuple(lines), may_fail=True)


def _ports(bed: Testbed, fault: SlowPort) -> tuple[tuple[str, str], ...]:
    """Return both ends of a link, each with its namespace."""
    switch = bed.layout.switch
    if fault.kind == "node":
        host = _host(bed, fault.name)
        return (host.namespace, INTERFACE), (switch, host.port)
    uplink = next(one for one in bed.layout.uplinks if one.rack == fault.name)
    return (switch, uplink.port), (switch, uplink.upper_port)


def _limit(runner: Runner, namespace: str, port: str, rate: float) -> ToolCall:
    """Return the call that limits a port further, behind its own token bucket, which stays as it is."""
    found = runner.query("tc", "-json", "-n", namespace, "qdisc", "show", "dev", port) or []
    handle = next(item["handle"] for item in found if item["kind"] == "tbf")
    # Senders hand over packets that suit the rate that the file claims.
    burst = max(bucket(rate).burst_bytes, packet_bytes(float("inf")))
    limit = f"htb rate {rate:.0f}bps burst {burst} cburst {burst} quantum {MTU_BYTES}"
    lines = (
        f"qdisc add dev {port} parent {handle}1 handle {_CHILD} htb default 1",
        f"class add dev {port} parent {_CHILD} classid {_CHILD}1 {limit}",
    )
    return ToolCall(tool="tc", namespace=namespace, lines=lines)


def _side_pair(bed: Testbed, host: Host, bridge: str, rate: float) -> Iterator[ToolCall]:
    """Yield the calls that give a host a second interface of this rate, on a bridge of the switch."""
    port, switch = _side_port(host), bed.layout.switch
    peer = f"name {SIDE_INTERFACE} mtu {MTU_BYTES} netns {host.namespace}"
    lines = (
        f"link add name {port} mtu {MTU_BYTES} type veth peer {peer}",
        f"link set {port} master {bridge} up addrgenmode none",
    )
    yield ToolCall(tool="ip", namespace=switch, lines=lines)
    up = f"link set {SIDE_INTERFACE} up addrgenmode none gso_max_size {packet_bytes(rate)}"
    yield ToolCall(tool="ip", namespace=host.namespace, lines=(up,))
    for namespace, name in ((switch, port), (host.namespace, SIDE_INTERFACE)):
        yield ToolCall(tool="tc", namespace=namespace, lines=(f"qdisc add dev {name} root {bucket(rate)}",))


def _side_port(host: Host) -> str:
    return f"side-{host.port}"


def _subnet(bed: Testbed) -> str:
    return f"10.77.{bed.layout.slot}.0/24"


def _host(bed: Testbed, node: str) -> Host:
    return next(host for host in bed.layout.hosts if host.node == node)
