"""The cases: for each kind a function that draws a training, a cluster and the fault that is planted.

A kind has the name of the cause that the doctor should find; a healthy training should be found to compute. Sizes are
drawn such that the planted cause costs a good part of the step and no other does: where transfers are not the fault,
their time on the wire is at most 60 % of the backward pass, in buckets small enough to be hidden.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace

from autosync.specs.cluster import ClusterSpec, Rack
from benchmarks.clusters import MEGABIT, emulated
from benchmarks.doctor_cases.networks import SIDE_INTERFACE, Fault, SideNetwork, SideRoute, SlowPort

NUM_PLANTED = 100
NUM_HEALTHY = 20
HEALTHY = "healthy"
COMPUTE = "compute"
MIB = 2**20
MOST_MEGABITS = 400
"""Faster emulated links would be limited by the processors."""
RACKS = ("east", "west", "south")
IN_PHASE = {"input": "between its passes", "forward": "in the forward pass", "backward": "in the backward pass"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The arguments of `planted.py`."""

    layers: int
    mebibytes: float
    forward_seconds: float
    backward_seconds: float
    input_seconds: float = 0.0
    bucket_mebibytes: float | None = None
    buffer_mebibytes: float = 0.0
    output_numbers: int = 0
    microsteps: int = 1
    slow_rank: int | None = None
    slow_phase: str | None = None
    slow_seconds: float = 0.0
    interface: str | None = None
    works: bool = False
    find_unused_parameters: bool = False
    synchronises_all: bool = False

    @property
    def compute_seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds

    def arguments(self) -> Iterator[str]:
        """Yield the arguments on the command line."""
        for field in fields(self):
            value = getattr(self, field.name)
            option = "--" + field.name.replace("_", "-")
            if value is True:
                yield option
            elif value is not None and value is not False:
                yield from (option, f"{value:g}" if isinstance(value, float) else str(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A training on a cluster with a fault.

    `subject` is the place that the doctor should name; None if any place is right. `words` are words that its evidence
    should have. `num_others` is the number of other programs that use the processors meanwhile.
    """

    training: Training
    cluster: ClusterSpec
    fault: Fault | None = None
    subject: str | None = ""
    words: str = ""
    num_others: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case. Its seed decides everything that is drawn, except the cluster's unique name."""

    name: str
    kind: str
    seed: str

    @property
    def cause(self) -> str:
        """The cause that the doctor should find."""
        return COMPUTE if self.kind == HEALTHY else self.kind

    def draw(self) -> Planted:
        return KINDS[self.kind](random.Random(self.seed))


def all_cases(seed: int) -> list[Case]:
    """Return all cases, in an order in which the first ones are spread over the kinds."""
    kinds = [kind for kind in KINDS if kind != HEALTHY]
    names = [kinds[number % len(kinds)] for number in range(NUM_PLANTED)]
    every = NUM_PLANTED // NUM_HEALTHY
    for number in range(NUM_HEALTHY):
        names.insert((number + 1) * every + number, HEALTHY)
    counts: dict[str, int] = {}
    cases = []
    for kind in names:
        number = counts[kind] = counts.get(kind, 0) + 1
        name = f"{kind}-{number}"
        cases.append(Case(name=name, kind=kind, seed=f"{seed}/{name}"))
    return cases


def _usual(
    lots: random.Random,
    *,
    hosts: int,
    compute: tuple[float, float] = (0.15, 0.4),
    wire: tuple[float, float] = (0.2, 0.5),
    mebibytes: tuple[float, float] = (3.0, 10.0),
    pieces: int = 8,
) -> tuple[Training, float]:
    """Return a training and the rate of its links.

    `compute` limits the seconds of both passes. `wire` limits the time of an all-reduce as a share of the backward
    pass. Buckets hold a `pieces`-th of the parameters, which are fewer than `mebibytes` if links would be too fast.
    """
    seconds, share = lots.uniform(*compute), lots.uniform(0.25, 0.4)
    backward = seconds * (1 - share)
    wire_seconds = lots.uniform(*wire) * backward
    passing = 2 * (hosts - 1) / hosts * MIB
    rate = min(lots.uniform(*mebibytes) * passing / wire_seconds, MOST_MEGABITS * MEGABIT)
    rate = max(round(rate / MEGABIT), 1) * MEGABIT
    size = rate * wire_seconds / passing
    training = Training(
        layers=lots.randint(pieces, 20),
        mebibytes=size,
        forward_seconds=seconds * share,
        backward_seconds=backward,
        bucket_mebibytes=size / pieces,
    )
    return training, rate


def _equal(hosts: int, rate: float) -> ClusterSpec:
    return emulated(*(rate / MEGABIT,) * hosts)


def _healthy(lots: random.Random) -> Planted:
    hosts = lots.randint(2, 4)
    training, rate = _usual(lots, hosts=hosts, compute=(0.2, 0.5))
    return Planted(training=replace(training, microsteps=lots.choice((1, 1, 2))), cluster=_equal(hosts, rate))


def _compute(lots: random.Random) -> Planted:
    hosts = lots.randint(2, 4)
    training, rate = _usual(lots, hosts=hosts, compute=(0.4, 1.0), wire=(0.02, 0.05), mebibytes=(0.5, 2.0))
    share = lots.uniform(0.2, 0.6)
    seconds = training.compute_seconds
    training = replace(
        training, forward_seconds=seconds * share, backward_seconds=seconds * (1 - share), bucket_mebibytes=None
    )
    return Planted(training=training, cluster=_equal(hosts, rate))


def _exposed_communication(lots: random.Random) -> Planted:
    hosts = lots.randint(2, 4)
    training, rate = _usual(lots, hosts=hosts, wire=(1.6, 4.0))
    return Planted(training=training, cluster=_equal(hosts, rate))


def _slow_link(lots: random.Random) -> Planted:
    hosts = lots.randint(3, 4)
    training, rate = _usual(lots, hosts=hosts, wire=(0.3, 0.6))
    slow, node = rate / lots.uniform(3, 6), lots.randrange(hosts)
    if lots.random() < 0.5:
        rates = [slow if number == node else rate for number in range(hosts)]
        return Planted(training=training, cluster=emulated(*(one / MEGABIT for one in rates)), subject=f"n{node}")
    fault = SlowPort(kind="node", name=f"n{node}", rate=slow)
    return Planted(training=training, cluster=_equal(hosts, rate), fault=fault, subject=fault.name)


def _slow_uplink(lots: random.Random) -> Planted:
    """Five hosts in three racks: with two, a slow way between them may be the fault of either."""
    training, rate = _usual(lots, hosts=5, wire=(0.3, 0.6))
    rack, slow = lots.choice(RACKS[:2]), rate / lots.uniform(3, 6)
    is_in_file = lots.random() < 0.5
    nodes = [replace(node, rack=RACKS[number // 2]) for number, node in enumerate(_equal(5, rate).nodes)]
    uplinks = {name: slow if is_in_file and name == rack else 2 * rate for name in RACKS}
    racks = tuple(Rack(name=name, uplink_out=one, uplink_in=one) for name, one in uplinks.items())
    cluster = replace(_equal(5, rate), nodes=tuple(nodes), racks=racks)
    fault = None if is_in_file else SlowPort(kind="rack", name=rack, rate=slow)
    return Planted(training=training, cluster=cluster, fault=fault, subject=rack)


def _wrong_interface(lots: random.Random) -> Planted:
    hosts = lots.randint(2, 4)
    training, rate = _usual(lots, hosts=hosts, wire=(0.2, 0.4))
    slow = rate / lots.uniform(5, 8)
    if lots.random() < 0.5:
        node = f"n{lots.randrange(hosts)}"
        fault = SideRoute(node=node, rate=slow)
        return Planted(training=training, cluster=_equal(hosts, rate), fault=fault, subject=node)
    training = replace(training, interface=SIDE_INTERFACE)
    return Planted(training=training, cluster=_equal(hosts, rate), fault=SideNetwork(rate=slow), subject=None)


def _slow_rank(lots: random.Random) -> Planted:
    hosts = lots.randint(2, 4)
    training, rate = _usual(lots, hosts=hosts)
    rank, phase = lots.randrange(hosts), lots.choice(list(IN_PHASE))
    seconds = training.compute_seconds * lots.uniform(0.4, 1.5)
    training = replace(training, slow_rank=rank, slow_phase=phase, slow_seconds=seconds)
    subject = f"rank {rank} on n{rank}"
    return Planted(training=training, cluster=_equal(hosts, rate), subject=subject, words=IN_PHASE[phase])


def _slow_input(lots: random.Random) -> Planted:
    hosts = lots.randint(2, 4)
    training, rate = _usual(lots, hosts=hosts)
    seconds = training.compute_seconds * lots.uniform(0.3, 1.5)
    return Planted(training=replace(training, input_seconds=seconds), cluster=_equal(hosts, rate))


def _bucket_sizes(lots: random.Random) -> Planted:
    """Draw one bucket for everything, which cannot be hidden; or a bucket for each of many small gradients."""
    hosts = lots.randint(2, 4)
    if lots.random() < 0.5:
        training, rate = _usual(lots, hosts=hosts, wire=(0.5, 0.9))
        training = replace(training, layers=lots.randint(15, 25), bucket_mebibytes=2 * training.mebibytes)
        return Planted(training=training, cluster=_equal(hosts, rate))
    training, rate = _usual(lots, hosts=4, compute=(0.06, 0.09), wire=(0.2, 0.4), mebibytes=(1.0, 3.0))
    training = replace(training, layers=lots.randint(140, 200), bucket_mebibytes=0.001)
    return Planted(training=training, cluster=_equal(4, rate))


def _unused_parameters(lots: random.Random) -> Planted:
    """Draw a model that returns many numbers, in each of which DDP looks for tensors."""
    hosts = lots.randint(2, 3)
    training, rate = _usual(lots, hosts=hosts)
    training = replace(training, find_unused_parameters=True, output_numbers=lots.randint(100_000, 300_000))
    return Planted(training=training, cluster=_equal(hosts, rate))


def _buffer_broadcasts(lots: random.Random) -> Planted:
    hosts = lots.randint(2, 4)
    training, rate = _usual(lots, hosts=hosts, mebibytes=(2.0, 4.0))
    size = lots.uniform(0.3, 1.0) * training.compute_seconds * rate / MIB
    return Planted(training=replace(training, buffer_mebibytes=size), cluster=_equal(hosts, rate))


def _accumulation(lots: random.Random) -> Planted:
    hosts = lots.randint(2, 4)
    training, rate = _usual(lots, hosts=hosts, compute=(0.08, 0.2), wire=(1.6, 3.0))
    training = replace(training, microsteps=lots.randint(2, 4), synchronises_all=True)
    return Planted(training=training, cluster=_equal(hosts, rate))


def _other_programs(lots: random.Random) -> Planted:
    """Draw a training that uses processors, and other programs that use all of them too."""
    training, rate = _usual(lots, hosts=2, compute=(0.1, 0.25))
    num_others = lots.randint(1, 2) * (os.cpu_count() or 1)
    return Planted(training=replace(training, works=True), cluster=_equal(2, rate), subject=None, num_others=num_others)


KINDS: Mapping[str, Callable[[random.Random], Planted]] = {
    COMPUTE: _compute,
    "exposed_communication": _exposed_communication,
    "slow_link": _slow_link,
    "slow_uplink": _slow_uplink,
    "wrong_interface": _wrong_interface,
    "slow_rank": _slow_rank,
    "slow_input": _slow_input,
    "bucket_sizes": _bucket_sizes,
    "unused_parameters": _unused_parameters,
    "buffer_broadcasts": _buffer_broadcasts,
    "accumulation": _accumulation,
    "other_programs": _other_programs,
    HEALTHY: _healthy,
}
