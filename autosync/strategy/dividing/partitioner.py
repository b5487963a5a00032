"""Finds a good division into stages: a dynamic programme over blocks and hosts, from the last stage to the first.

Hosts that are alike (speed, rates, memory, rack) form a class, and only the number of hosts of each class matters. A
state is the block at which the stages so far begin, the hosts of each class that they use, and the rack of their first
stage. The time of a division is a sum of latencies and a maximum over stages. So the programme minimises the sum below
each of several limits on the maximum, and the best sum and limit together win. Few divisions are tried below every
limit that matters; for many, limits lie close together, first over the whole range and then around the best.

A stage may have hosts of several classes only while there are few kinds of mixtures, or if it has all hosts. With many
classes, stages take the hosts class by class, in several orders of the classes.
Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.1, and
"Memory-Efficient Pipeline-Parallel DNN Training" (PipeDream-2BW and -Flush), ICML 2021; there, hosts are alike.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autosync.strategy.dividing.division_problem import BlockStage, DivisionProblem, StageHost, Vector
from autosync.strategy.dividing.joined_blocks import joined, unjoined

MOST_MIXTURES = 64
"""With more kinds of mixtures, stages have hosts of one class."""
MOST_STATES = 150
"""With more combinations of used hosts, classes are used up one after another."""
MOST_LIMITS = 64
NUM_LIMITS = 20
MOST_WORK = 60_000_000
"""The most numbers that one pass of the programme compares; above it, blocks are joined."""
LEAST_BLOCKS = 24
NUM_REMEMBERED = 512
"""A search asks for the divisions of the same problem several times."""

Counts = tuple[int, ...]


class FoundDivision(NamedTuple):
    """A division and the estimated time of its step."""

    stages: tuple[BlockStage, ...]
    seconds: float


@functools.lru_cache(maxsize=NUM_REMEMBERED)
def partition(problem: DivisionProblem) -> FoundDivision | None:
    """Return the best division that was found, which uses all hosts; None if none fits into memory."""
    programmes = [_Programme(problem)]
    if programmes[0].num_states > MOST_STATES:
        orders = programmes[0].orders()
        programmes = [_Programme(problem, order=order) for order in orders]
    work = max(1, *(programme.work for programme in programmes))
    least = max(programme.least_blocks for programme in programmes)
    num_blocks = max(least, math.isqrt(int(MOST_WORK * problem.num_blocks**2 / work)))
    if work > MOST_WORK and num_blocks < problem.num_blocks:
        of_fewer, ends = joined(problem, num_blocks)
        found = partition(of_fewer)
        if found is None:
            return None
        stages = unjoined(found.stages, ends)
        return FoundDivision(stages, problem.time_of(stages))
    return min(filter(None, (programme.solve() for programme in programmes)), key=_seconds, default=None)


class _Mixture(NamedTuple):
    """The hosts of a stage: how many of each class, some hosts that stand for them, and their rack."""

    counts: Counts
    hosts: tuple[int, ...]
    rack: int


class _Choice(NamedTuple):
    """By limit and first block: the best sum of latencies, the end of the first stage, and the state behind it."""

    sums: Vector
    ends: npt.NDArray[np.int64]
    mixtures: npt.NDArray[np.int64]
    racks: npt.NDArray[np.int64]


class _Programme:
    def __init__(self, problem: DivisionProblem, *, order: Sequence[StageHost] = ()) -> None:
        self._problem = problem
        self._is_in_order = bool(order)
        classes: dict[StageHost, list[int]] = {host: [] for host in order}
        for index, host in enumerate(problem.hosts):
            classes.setdefault(host, []).append(index)
        self._kinds_of_hosts = list(classes)
        self._classes = list(classes.values())
        self._all: Counts = tuple(len(members) for members in self._classes)
        self._mixtures = [self._mixture(counts) for counts in self._kinds() if problem.takes(sum(counts))]
        # Behind the last stage there is no rack.
        self._racks = sorted({one.rack for one in self._mixtures})

    def _kinds(self) -> list[Counts]:
        if math.prod(count + 1 for count in self._all) <= MOST_MIXTURES:
            return [one for one in itertools.product(*(range(count + 1) for count in self._all)) if any(one)]
        zeros = (0,) * len(self._all)
        kinds = [
            (*zeros[:place], number, *zeros[place + 1 :])
            for place, count in enumerate(self._all)
            for number in range(1, count + 1)
        ]
        return [*kinds, self._all] if len(self._all) > 1 else kinds

    def _mixture(self, counts: Counts) -> _Mixture:
        members = zip(self._classes, counts, strict=True)
        hosts = tuple(host for of_class, count in members for host in of_class[:count])
        return _Mixture(counts, hosts, self._problem.rack_of(hosts))

    @property
    def num_states(self) -> int:
        """The number of combinations of used hosts."""
        return math.prod(count + 1 for count in self._all)

    def orders(self) -> list[tuple[StageHost, ...]]:
        """Return the different orders in which classes may be used up: by rack and speed, or by speed alone."""
        hosts = self._kinds_of_hosts
        keys: list[Callable[[StageHost], tuple[float, ...]]] = [
            lambda host: (host.rack, host.speed),
            lambda host: (host.rack, -host.speed),
            lambda host: (host.speed, min(host.rate_out, host.rate_in)),
        ]
        return list(dict.fromkeys(tuple(sorted(hosts, key=key)) for key in keys))

    def _used(self) -> list[Counts]:
        """Return the combinations of used hosts, from none to all."""
        if not self._is_in_order:
            return sorted(itertools.product(*(range(count + 1) for count in self._all)), key=sum)
        found: list[Counts] = [(0,) * len(self._all)]
        for place, count in enumerate(self._all):
            after = (0,) * (len(self._all) - place - 1)
            found += [(*self._all[:place], number, *after) for number in range(1, count + 1)]
        return found

    @property
    def work(self) -> int:
        """About how many numbers one pass compares."""
        if self._is_in_order:
            num_pairs = sum(len(self._mixtures_before(used)) for used in self._used()[1:])
        else:
            num_pairs = self.num_states * len(self._mixtures) * len(self._racks)
        return num_pairs * NUM_LIMITS * self._problem.num_blocks**2 // 4

    @property
    def least_blocks(self) -> int:
        """The fewest blocks with which the hosts of each class can have their stages, and a choice of boundaries."""
        most = max(1, min(self._problem.microbatches, self._problem.most_hosts))
        least_stages = sum(math.ceil(count / most) for count in self._all)
        return max(LEAST_BLOCKS, 2 * least_stages)

    def _mixtures_before(self, used: Counts) -> Sequence[int]:
        """Return the mixtures (by position) that the first of the stages with these hosts may have.

        In order, only the last class in use is used up in part.
        """
        if not self._is_in_order:
            return range(len(self._mixtures))
        last = max(place for place, count in enumerate(used) if count)
        return [number for number, mixture in enumerate(self._mixtures) if mixture.counts[last]]

    def solve(self) -> FoundDivision | None:
        best = self._below([math.inf])
        if best is None:
            return None
        rests = self._rests(best.seconds)
        if len(rests) <= MOST_LIMITS:
            return min(filter(None, (best, self._below(rests))), key=_seconds)
        limits = list(np.geomspace(max(rests[0], 1e-12), rests[-1], NUM_LIMITS))
        for _ in range(2):
            found = self._below(limits)
            best = min(filter(None, (best, found)), key=_seconds)
            rest = self._rest_of(best)
            limits = list(np.geomspace(rest / 1.15, rest * 1.15, NUM_LIMITS))
        return best

    def _rests(self, most: float) -> list[float]:
        """Return what stages and boundaries may add for all other microbatches, up to a time, in order."""
        found: set[float] = set()
        for mixture in self._mixtures:
            _, rests = self._costs(mixture)
            found.update(rests[rests <= most].tolist())
            for rack in self._racks:
                found.update(self._boundaries(mixture.rack, rack)[1].tolist())
        return sorted(one for one in found if 0 < one <= most)

    def _rest_of(self, division: FoundDivision) -> float:
        return max(self._problem.stage_cost(stage).rest for stage in division.stages) or 1e-12

    @functools.cache  # noqa: B019 - a programme lives for one call
    def _costs(self, mixture: _Mixture) -> tuple[Vector, Vector]:
        """Return latency and rest of every run of blocks, by its begin and end."""
        problem, num = self._problem, self._problem.num_blocks
        hosts = [problem.hosts[host] for host in mixture.hosts]
        count, speed = len(hosts), min(host.speed for host in hosts)
        out, into = min(host.rate_out for host in hosts), min(host.rate_in for host in hosts)
        forward = np.array([problem.crossing(boundary)[0] for boundary in range(num + 1)])
        backward = np.array([problem.crossing(boundary)[1] for boundary in range(num + 1)])
        compute = _runs(problem.seconds) / speed
        wire = np.maximum((forward[None, :] + backward[:, None]) / out, (forward[:, None] + backward[None, :]) / into)
        latency = compute + (forward / into + backward / out)[:, None]
        synchronisation = 2 * (count - 1) / count * _runs(problem.weight_bytes) / problem.summing_rate(mixture.hosts)
        synchronisation += problem.joint_seconds(1.0, mixture.hosts) * self._shared_bytes()
        alone = (problem.microbatches - 1) * np.maximum(compute, wire) / count
        rest = np.maximum(alone, problem.least_of_rests) + synchronisation
        is_run = np.arange(num + 1)[:, None] < np.arange(num + 1)[None, :]
        return np.where(is_run, latency, math.inf), np.where(is_run, rest, math.inf)

    @functools.cache  # noqa: B019 - see above
    def _shared_bytes(self) -> Vector:
        """Return the bytes of the weights that every run of blocks shares with others."""
        num = self._problem.num_blocks
        found = np.zeros((num + 1, num + 1))
        for one in self._problem.tied:
            inside = _runs([float(block in one.blocks) for block in range(num)])
            found += one.num_bytes * ((inside > 0) & (inside < len(one.blocks)))
        return found

    @functools.cache  # noqa: B019 - see above
    def _boundaries(self, rack: int, next_rack: int) -> tuple[Vector, Vector]:
        """Return latency and rest of the boundary before each block."""
        costs = [
            self._problem.boundary_cost(boundary, rack, next_rack) for boundary in range(self._problem.num_blocks + 1)
        ]
        return np.array([cost.latency for cost in costs]), np.array([cost.rest for cost in costs])

    @functools.cache  # noqa: B019 - see above
    def _misfits(self, mixture: _Mixture, num_behind: int) -> npt.NDArray[np.bool_] | None:
        """Return which runs of blocks do not fit into the hosts' memory; None if memory is no limit."""
        problem = self._problem
        memory = min(problem.hosts[host].memory for host in mixture.hosts)
        if math.isinf(memory):
            return None
        count = len(mixture.hosts)
        under_way = problem.num_under_way(count, num_behind)
        held = _runs(problem.held_bytes)
        entering = np.array([[problem.crossing(boundary)[0]] for boundary in range(problem.num_blocks + 1)])
        needed = problem.needed_bytes(
            self._trained_bytes(),
            problem.kept_bytes(under_way, held, entering),
            problem.bytes_between_steps(under_way, held, entering),
            problem.num_copies(count, num_behind),
        )
        return np.asarray(needed > memory)

    @functools.cache  # noqa: B019 - see above
    def _trained_bytes(self) -> Vector:
        """Return the bytes of the parameters that the hosts of every run of blocks train."""
        found = _runs(self._problem.weight_bytes)
        for one in self._problem.tied:
            first, *later = (self._is_within(block) for block in one.blocks)
            held_again = np.logical_or.reduce([np.zeros_like(first), *later]) & ~first
            found += one.num_bytes * held_again
        return found

    def _is_within(self, block: int) -> npt.NDArray[np.bool_]:
        """Return whether every run of blocks has a block."""
        return _runs([float(block == other) for other in range(self._problem.num_blocks)]) > 0

    def _below(self, limits: Sequence[float]) -> FoundDivision | None:
        """Return the best division of which no stage adds more than a limit, over all limits."""
        bounds = np.array(limits)
        num = self._problem.num_blocks
        start = np.full((len(bounds), num + 1), math.inf)
        start[:, num] = 0.0
        nothing = np.zeros(start.shape, dtype=np.int64)
        states: dict[tuple[Counts, int | None], _Choice] = {}
        none: Counts = (0,) * len(self._all)
        states[none, None] = _Choice(start, nothing, nothing, nothing)
        for used in self._used()[1:]:
            for number in self._mixtures_before(used):
                counts = self._mixtures[number].counts
                behind = tuple(one - other for one, other in zip(used, counts, strict=True))
                if min(behind) >= 0:
                    self._extend(states, used, number, behind, bounds)
        return self._best(states, limits)

    def _extend(
        self,
        states: dict[tuple[Counts, int | None], _Choice],
        used: Counts,
        number: int,
        behind: Counts,
        bounds: Vector,
    ) -> None:
        """Add a first stage with this mixture to all divisions behind it."""
        mixture = self._mixtures[number]
        latency, rest = self._costs(mixture)
        misfits = self._misfits(mixture, sum(behind))
        for place, rack in enumerate([None, *self._racks]):
            after = states.get((behind, rack))
            if after is None:
                continue
            if rack is None:
                more, boundary_rest = np.zeros(latency.shape[1]), np.zeros(latency.shape[1])
            else:
                more, boundary_rest = self._boundaries(mixture.rack, rack)
            cost = latency + more[None, :]
            if misfits is not None:
                cost = np.where(misfits, math.inf, cost)
            worst = np.maximum(rest, boundary_rest[None, :])
            is_over = worst[None, :, :] > bounds[:, None, None]
            sums = np.where(is_over, math.inf, cost[None, :, :] + after.sums[:, None, :])
            ends = sums.argmin(axis=2)
            found = np.take_along_axis(sums, ends[:, :, None], axis=2)[:, :, 0]
            self._take(
                states,
                (used, mixture.rack),
                _Choice(found, ends, np.full_like(ends, number), np.full_like(ends, place)),
            )

    def _take(
        self, states: dict[tuple[Counts, int | None], _Choice], key: tuple[Counts, int | None], found: _Choice
    ) -> None:
        """Keep the better of what is known and what was found, for each limit and block."""
        known = states.get(key)
        if known is None:
            states[key] = found
            return
        is_better = found.sums < known.sums
        states[key] = _Choice(*(np.where(is_better, new, old) for new, old in zip(found, known, strict=True)))

    def _best(self, states: dict[tuple[Counts, int | None], _Choice], limits: Sequence[float]) -> FoundDivision | None:
        best: FoundDivision | None = None
        for rack in self._racks:
            choice = states.get((self._all, rack))
            if choice is None:
                continue
            for place in range(len(limits)):
                if math.isfinite(choice.sums[place, 0]):
                    stages = self._stages(states, rack, place)
                    seconds = self._problem.time_of(stages)
                    if best is None or seconds < best.seconds:
                        best = FoundDivision(stages, seconds)
        return best

    def _stages(
        self, states: dict[tuple[Counts, int | None], _Choice], first_rack: int, place: int
    ) -> tuple[BlockStage, ...]:
        """Follow the choices from the first stage to the last, and give each stage its own hosts."""
        free = [list(members) for members in self._classes]
        used, begin = self._all, 0
        rack: int | None = first_rack
        stages: list[BlockStage] = []
        while begin < self._problem.num_blocks:
            choice = states[used, rack]
            mixture = self._mixtures[int(choice.mixtures[place, begin])]
            end = int(choice.ends[place, begin])
            hosts = [free[kind].pop(0) for kind, count in enumerate(mixture.counts) for _ in range(count)]
            stages.append(BlockStage(begin, end, tuple(hosts)))
            rack = [None, *self._racks][int(choice.racks[place, begin])]
            used = tuple(one - other for one, other in zip(used, mixture.counts, strict=True))
            begin = end
        return tuple(stages)


def _seconds(found: FoundDivision) -> float:
    return found.seconds


def _runs(values: Sequence[float]) -> Vector:
    """Return the sum of every run of values, by its begin and end."""
    until = np.concatenate(([0.0], np.cumsum(values)))
    return np.asarray(until[None, :] - until[:, None])
