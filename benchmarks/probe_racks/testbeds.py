"""Random testbeds with links that hosts share although the cluster file states no rack, and testbeds without."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from autosync import testbed
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.shaping import MTU_BYTES, bucket
from autosync.testbed.commands import Runner, ToolCall
from autosync.testbed.layout import NetworkLayout
from autosync.testbed.requirements import find_folders
from autosync.trials.probe.schedule import all_workers
from benchmarks.clusters import MEGABIT

NUM_HOSTS = (4, 5, 6, 7, 8)
MEGABITS = (80.0, 120.0, 160.0)
"""Rates of links that a machine with two processors carries for eight hosts."""
SPEEDS = (1.0, 1.0, 0.6)
OVERSUBSCRIBED = (0.3, 0.75)
"""A planted uplink has a share in this range of what its hosts could send or receive together."""

CLEARLY = 0.78
"""A rack is planted if its uplink is slower than this share of what its hosts could exchange with the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedRack:
    """Hosts, by position, behind an uplink of these rates in bytes per second; None is no limit."""

    members: tuple[int, ...]
    out: float | None
    into: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A testbed as its cluster file states it, and the racks that are planted in it."""

    name: str
    cluster: ClusterSpec
    racks: tuple[PlantedRack, ...]


def case(number: int, *, is_planted: bool) -> Case:
    """Return the case of that number: equal hosts or hosts of several speeds, one or two ranks each."""
    order = random.Random(f"{number} {is_planted}")
    base, num_hosts = order.choice(MEGABITS) * MEGABIT, order.choice(NUM_HOSTS)
    is_equal = order.random() < 0.5
    out, into = ([base * (1.0 if is_equal else order.choice(SPEEDS)) for _ in range(num_hosts)] for _ in range(2))
    if not is_equal and order.random() < 0.5:
        # One slow host.
        slow = order.randrange(num_hosts)
        out[slow] = into[slow] = 0.3 * base
    devices = 2 if num_hosts <= 5 and order.random() < 0.4 else 1
    name = f"racks-{'planted' if is_planted else 'none'}-{number}"
    nodes = tuple(
        Node(name=f"host-{n}", host=f"host-{n}", devices=devices, bandwidth_out=out[n], bandwidth_in=into[n])
        for n in range(num_hosts)
    )
    racks = _noticed(order, out, into) if is_planted else ()
    return Case(name=name, cluster=ClusterSpec(name=name, nodes=nodes, launcher="testbed"), racks=racks)


def _noticed(order: random.Random, out: Sequence[float], into: Sequence[float]) -> tuple[PlantedRack, ...]:
    """Return racks that each limit what their hosts exchange with the others, whatever the other racks leave of it."""
    while True:
        racks = tuple(_planted(order, out, into))
        if all(_limits(rack, [other for other in racks if other != rack], out, into) for rack in racks):
            return racks


def _limits(rack: PlantedRack, others: Sequence[PlantedRack], out: Sequence[float], into: Sequence[float]) -> bool:
    racked = {host for one in (rack, *others) for host in one.members}

    def possible(rates: Sequence[float], limits: Sequence[float | None]) -> float:
        behind = [sum(rates[host] for host in other.members) for other in others]
        reached = [total if limit is None else min(total, limit) for total, limit in zip(behind, limits, strict=True)]
        return sum(rate for host, rate in enumerate(rates) if host not in racked) + sum(reached)

    sent = min(sum(out[host] for host in rack.members), possible(into, [other.into for other in others]))
    received = min(sum(into[host] for host in rack.members), possible(out, [other.out for other in others]))
    return (rack.out or 0.0) < CLEARLY * sent and (rack.into or 0.0) < CLEARLY * received


def _planted(order: random.Random, out: Sequence[float], into: Sequence[float]) -> Iterator[PlantedRack]:
    hosts = order.sample(range(len(out)), len(out))
    for _ in range(order.choice((1, 1, 2))):
        size = order.choice([size for size in (2, 3, 4) if size <= len(out) // 2])
        if size >= len(hosts):
            return
        members, hosts = tuple(sorted(hosts[:size])), hosts[size:]
        sent, received = _demand(members, out, into), _demand(members, into, out)
        free = order.choice((None, None, "out", "in"))
        yield PlantedRack(
            members=members,
            out=None if free == "out" else order.uniform(*OVERSUBSCRIBED) * sent,
            into=None if free == "in" else order.uniform(*OVERSUBSCRIBED) * received,
        )


def _demand(members: Sequence[int], out: Sequence[float], into: Sequence[float]) -> float:
    """Return the bytes per second that the members could send to the others."""
    others = [rate for host, rate in enumerate(into) if host not in members]
    return min(sum(out[host] for host in members), sum(others))


@contextmanager
def planted(one: Case) -> Iterator[None]:
    """Bring the testbed that a probe of the case uses up, with its racks."""
    with testbed.up(all_workers(one.cluster)) as built:
        runner = Runner(enter=find_folders().manage(built.layout.key))
        for number, rack in enumerate(one.racks):
            for call in _calls(built.layout, number, rack):
                runner.run(call)
        yield


def _calls(layout: NetworkLayout, number: int, rack: PlantedRack) -> Iterator[ToolCall]:
    """Yield the commands that move the ports of a rack's hosts to a bridge of their own, behind a limited link."""
    bridge, port, spine_port = f"planted{number}", f"plantup{number}", f"plantdown{number}"
    lines = [
        f"link add name {bridge} mtu {MTU_BYTES} type bridge mcast_snooping 0",
        f"link set {bridge} up",
        f"link add name {port} mtu {MTU_BYTES} type veth peer name {spine_port} mtu {MTU_BYTES}",
        f"link set {port} master {bridge} up",
        f"link set {spine_port} master spine up",
        *(f"link set {layout.hosts[host].port} master {bridge}" for host in rack.members),
    ]
    yield ToolCall(tool="ip", namespace=layout.switch, lines=tuple(lines))
    limits = [(port, rack.out), (spine_port, rack.into)]
    shaped = tuple(f"qdisc add dev {at} root {bucket(rate)}" for at, rate in limits if rate is not None)
    yield ToolCall(tool="tc", namespace=layout.switch, lines=shaped)
