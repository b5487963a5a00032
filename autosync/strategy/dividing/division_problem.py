"""The problem of dividing a model into stages, as numbers, and how long a division takes.

A model is a row of *blocks* between places where it can be cut. A division gives each stage a run of blocks and some
hosts. Its time is an estimate for choosing, not a prediction: the time in which one microbatch passes all stages, and
for all others the period of the slowest stage, with the all-reduce of its gradients:

    sum over stages of latency  +  max over stages of ((microbatches - 1) * period + synchronisation)

The period of a stage with n hosts is an n-th of its compute, or of what its slowest interface sends or receives. A
boundary between racks has the period of the slower uplink. The gradient of a weight that blocks of several stages use
is summed over them too, which counts as synchronisation of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from autosync.strategy.stages import PipelineSchedule, late_turns

Vector = npt.NDArray[np.float64]

Bytes = TypeVar("Bytes", float, Vector)
"""Of one run of blocks, or of every run."""

MIXED = -1
"""The rack of a stage whose hosts are in several."""


class StageHost(NamedTuple):
    """A host that computes: its speed, the rates of its interface, its memory in bytes, and its rack."""

    speed: float = 1.0
    rate_out: float = math.inf
    rate_in: float = math.inf
    memory: float = math.inf
    rack: int = 0


class BlockStage(NamedTuple):
    """A stage: the blocks from `begin` up to `end`, on these hosts (by position)."""

    begin: int
    end: int
    hosts: tuple[int, ...]


class TiedWeight(NamedTuple):
    """A weight that several blocks use, and its bytes.

    The first of `blocks` is the first that uses it, whose `weight_bytes` have it. Blocks below 0 are others, which are
    never in a stage.
    """

    blocks: tuple[int, ...]
    num_bytes: float

    def is_shared(self, stage: BlockStage) -> bool:
        """Whether a stage has some of its blocks, and others do too."""
        inside = sum(stage.begin <= block < stage.end for block in self.blocks)
        return 0 < inside < len(self.blocks)

    def is_held_again(self, stages: Sequence[BlockStage]) -> bool:
        """Whether a host with these stages uses it, and its first block is elsewhere."""
        inside = [any(stage.begin <= block < stage.end for stage in stages) for block in self.blocks]
        return any(inside) and not inside[0]


class StageCost(NamedTuple):
    """The latency of one microbatch in a stage, and what the stage adds for all others."""

    latency: float
    rest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DivisionProblem:
    """Blocks and hosts. All numbers are those of one microbatch.

    `seconds` is forward and backward compute of each block on a host of speed 1, `weight_bytes` its parameters, and
    `held_bytes` what it keeps until its backward pass. `forward_bytes` and `backward_bytes` cross the boundary behind a
    block. With `recompute`, a stage keeps what enters it instead. With `splits_backward`, it keeps microbatches until
    their gradients of weights are there. With `deals_evenly`, the hosts of a stage compute equally many microbatches.
    A stage has `most_hosts` at most. `unflushed` is the schedule if it is one without a flush, which keeps copies of
    parameters. `uplinks` are the rates of racks. A host also keeps `fixed_bytes`, and `state_factor` bytes for each
    byte of the parameters that it trains. The check of the first step takes `check_bytes` besides the fixed ones. That
    of a later step takes `compared_bytes` besides gradients. `entering` and `leaving` cross the outer ends, forward and
    backward, if other hosts compute what is beyond them: so many before and behind as `hosts_beyond` says. These add
    `least_rest` for all other microbatches.
    """

    seconds: tuple[float, ...]
    weight_bytes: tuple[float, ...]
    held_bytes: tuple[float, ...]
    forward_bytes: tuple[float, ...]
    backward_bytes: tuple[float, ...]
    hosts: tuple[StageHost, ...]
    uplinks: tuple[float, ...]
    microbatches: int
    slack: int = 0
    recompute: bool = False
    splits_backward: bool = False
    deals_evenly: bool = False
    most_hosts: float = math.inf
    unflushed: PipelineSchedule | None = None
    fixed_bytes: float = 0.0
    check_bytes: float = 0.0
    compared_bytes: float = 0.0
    state_factor: float = 0.0
    tied: tuple[TiedWeight, ...] = ()
    entering: tuple[float, float] = (0.0, 0.0)
    leaving: tuple[float, float] = (0.0, 0.0)
    hosts_beyond: tuple[int, int] = (0, 0)
    least_rest: float = 0.0

    @property
    def num_blocks(self) -> int:
        return len(self.seconds)

    def takes(self, count: int) -> bool:
        """Whether a stage may have so many hosts: each of them computes a microbatch."""
        return count <= min(self.microbatches, self.most_hosts) and not (
            self.deals_evenly and self.microbatches % count
        )

    def crossing(self, boundary: int) -> tuple[float, float]:
        """Return the bytes that cross the boundary before a block, forward and backward."""
        if boundary == 0:
            return self.entering
        if boundary == self.num_blocks:
            return self.leaving
        return self.forward_bytes[boundary - 1], self.backward_bytes[boundary - 1]

    def rack_of(self, hosts: Sequence[int]) -> int:
        """Return the rack of hosts."""
        racks = {self.hosts[host].rack for host in hosts}
        return racks.pop() if len(racks) == 1 else MIXED

    def uplink_rate(self, one: int, other: int) -> float:
        """Return the rate between hosts in two racks: infinite within one rack."""
        if one == other and one != MIXED:
            return math.inf
        return min([self.uplinks[rack] for rack in (one, other) if rack != MIXED] or self.uplinks, default=math.inf)

    @property
    def least_of_rests(self) -> float:
        """What the slowest stage adds for all other microbatches at least: that of evenly divided compute."""
        even = math.fsum(self.seconds) / math.fsum(host.speed for host in self.hosts)
        return max(self.least_rest, (self.microbatches - 1) * even)

    def summing_rate(self, hosts: Sequence[int]) -> float:
        """Return the rate at which hosts sum gradients: that of their slowest interface, or uplink between racks."""
        rates = [min(self.hosts[host].rate_out, self.hosts[host].rate_in) for host in hosts]
        if self.rack_of(hosts) == MIXED:
            rates += [self.uplinks[self.hosts[host].rack] for host in hosts]
        return min(rates)

    def joint_seconds(self, num_bytes: float, hosts: Sequence[int]) -> float:
        """Return the time in which hosts sum the gradient of a weight with those of another stage.

        That stage has at least one host, which may be in another rack.
        """
        count, rates = len(hosts), [self.summing_rate(hosts)]
        if len({host.rack for host in self.hosts}) > 1:
            rates += [self.uplinks[self.hosts[host].rack] for host in hosts]
        return 2 * count / (count + 1) * num_bytes / min(rates)

    def stage_cost(self, stage: BlockStage) -> StageCost:
        """Return what a stage costs by itself."""
        hosts = [self.hosts[host] for host in stage.hosts]
        count = len(hosts)
        compute = math.fsum(self.seconds[stage.begin : stage.end]) / min(host.speed for host in hosts)
        forward, backward = zip(self.crossing(stage.begin), self.crossing(stage.end), strict=True)
        out, into = min(host.rate_out for host in hosts), min(host.rate_in for host in hosts)
        wire = max((forward[1] + backward[0]) / out, (forward[0] + backward[1]) / into)
        weights = math.fsum(self.weight_bytes[stage.begin : stage.end])
        synchronisation = 2 * (count - 1) / count * weights / self.summing_rate(stage.hosts)
        shared = math.fsum(one.num_bytes for one in self.tied if one.is_shared(stage))
        synchronisation += self.joint_seconds(shared, stage.hosts)
        alone = (self.microbatches - 1) * max(compute, wire) / count
        return StageCost(
            latency=compute + forward[0] / into + backward[0] / out,
            # Gradients are complete after the last microbatch, which comes at the pace of the slowest stage.
            rest=max(alone, self.least_of_rests) + synchronisation,
        )

    def boundary_cost(self, boundary: int, rack: int, next_rack: int) -> StageCost:
        """Return what a boundary between racks costs."""
        forward, backward = self.crossing(boundary)
        rate = self.uplink_rate(rack, next_rack)
        return StageCost(
            latency=(forward + backward) / rate, rest=(self.microbatches - 1) * max(forward, backward) / rate
        )

    def fits(self, stage: BlockStage, num_behind: int) -> bool:
        """Whether a stage fits into its hosts' memory; `num_behind` hosts compute the stages behind it."""
        under_way = self.num_under_way(len(stage.hosts), num_behind)
        held = math.fsum(self.held_bytes[stage.begin : stage.end])
        entering = self.crossing(stage.begin)[0]
        needed = self.needed_bytes(
            self.trained_bytes([stage]),
            self.kept_bytes(under_way, held, entering),
            self.bytes_between_steps(under_way, held, entering),
            self.num_copies(len(stage.hosts), num_behind),
        )
        return needed <= min(self.hosts[host].memory for host in stage.hosts)

    def num_under_way(self, count: int, num_behind: int) -> int:
        """Return how many microbatches a host of a stage with `count` hosts keeps at most."""
        before, behind = self.hosts_beyond
        others = len(self.hosts) - count + before if self.splits_backward else num_behind
        return min(-(-(count + others + behind) // count) + self.slack, -(-self.microbatches // count))

    def num_copies(self, count: int, num_behind: int) -> int:
        """Return how many copies of its parameters and gradients a host of a stage has, besides one of each."""
        if self.unflushed is None:
            return 0
        if self.unflushed == "2bw":
            # Each of the two batches under way has its own parameters, and one of them gradients of its own.
            return 3
        under_way = -(-(count + num_behind) // count) + self.slack
        missed = late_turns(0, under_way, max(1, self.microbatches // count))
        return missed + 1 if missed else 0

    def kept_bytes(self, under_way: int, held: Bytes, entering: Bytes) -> Bytes:
        """Return what a host keeps of microbatches that are under way; of one, a backward pass needs all."""
        return under_way * entering + held if self.recompute else under_way * held

    def bytes_between_steps(self, under_way: int, held: Bytes, entering: Bytes) -> Bytes:
        """Return what a host keeps of microbatches between two steps: none with a flush, or else all but the next."""
        late = 0 if self.unflushed is None else under_way - 1
        return late * (entering if self.recompute else held)

    def trained_bytes(self, stages: Sequence[BlockStage]) -> float:
        """Return the bytes of the parameters that a host with these stages trains."""
        weights = math.fsum(math.fsum(self.weight_bytes[stage.begin : stage.end]) for stage in stages)
        return weights + math.fsum(one.num_bytes for one in self.tied if one.is_held_again(stages))

    def needed_bytes(self, trained: Bytes, kept: Bytes, between_steps: Bytes, num_copies: int) -> Bytes:
        """Return the memory of a host that trains so many bytes of parameters, and keeps so much of microbatches.

        The check of a later step has two gradients of these parameters beside what is kept between steps.
        """
        in_a_check = between_steps + 2 * trained + self.compared_bytes
        most: Bytes = np.maximum(kept, in_a_check)
        needed: Bytes = np.maximum((self.state_factor + num_copies) * trained + most, self.check_bytes)
        return self.fixed_bytes + needed

    def time_of(self, stages: Sequence[BlockStage]) -> float:
        """Return the time of a step; infinite if a stage does not fit, or may not have so many hosts."""
        costs = [self.stage_cost(stage) for stage in stages]
        behind = len(self.hosts)
        for stage in stages:
            behind -= len(stage.hosts)
            if not self.fits(stage, behind) or not self.takes(len(stage.hosts)):
                return math.inf
        racks = [self.rack_of(stage.hosts) for stage in stages]
        for number, stage in enumerate(stages[:-1]):
            costs.append(self.boundary_cost(stage.end, racks[number], racks[number + 1]))
        rest = max(self.least_rest, *[cost.rest for cost in costs])
        return math.fsum(cost.latency for cost in costs) + rest
