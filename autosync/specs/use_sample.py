"""Which variables ranks use in a step, as sampled: how often each is used, and which are used together.

The sample has steps of several ranks, because what ranks use in one step may depend on each other: a schedule that is
the same on all of them makes all use the same variables. From these steps one can compute how likely it is that at
least one of n ranks uses a variable, and one can draw steps of n ranks:

- n ranks, no more than were sampled, are any n of the ranks of a sampled step. This holds however ranks depend on each
  other.
- More ranks are all ranks of a sampled step, and independent draws for the rest. If ranks of one step are as unlike as
  those of different steps, the rest is drawn from all that was sampled. If they are more alike (`is_shared`), it is
  drawn from the ranks of that step. So more ranks never use less.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from autosync.documents import STRICT

ALIKE = 0.7
"""Ranks of a step are alike if they differ by less than this share of what ranks of different steps differ by. It is
small enough that chance alone hardly makes independent ranks alike."""

NUM_DRAWN = 8
"""The number of steps that simulators draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UseSample:
    """Sampled steps.

    `groups` are the variables that some rank did not use in some step; those of a group were used always together.
    Other variables of the model were used always. `steps` has for each step a text for each rank: a 1 or a 0 for each
    group says whether the rank used it.
    """

    __pydantic_config__ = STRICT

    groups: tuple[tuple[str, ...], ...]
    steps: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        names = [name for group in self.groups for name in group]
        if not all(self.groups) or not names:
            raise ValueError("a group is empty, or there is none (groups have variables that are not used always)")
        if len(set(names)) < len(names):
            (twice, _), *_ = Counter(names).most_common()
            raise ValueError(f"{twice!r} is in two groups (one group for each variable)")
        if not self.steps or not self.steps[0] or len({len(step) for step in self.steps}) > 1:
            raise ValueError("steps have different numbers of ranks, or none (each step has all sampled ranks)")
        wrong = (one for step in self.steps for one in step if len(one) != len(self.groups) or one.strip("01"))
        if (found := next(wrong, None)) is not None:
            raise ValueError(f"{found!r} does not say which of {len(self.groups)} groups were used (a 1 or a 0 each)")

    @property
    def names(self) -> frozenset[str]:
        """The variables that were not used always."""
        return frozenset(name for group in self.groups for name in group)

    @property
    def num_ranks(self) -> int:
        """The number of ranks of each sampled step."""
        return len(self.steps[0])

    @property
    def is_shared(self) -> bool:
        """Whether the ranks of a step are more alike than those of different steps."""
        return _is_shared(self)

    def share(self, names: Iterable[str], num_ranks: int) -> float:
        """Return the share of steps in which at least one of `num_ranks` ranks uses at least one of these variables."""
        wanted = frozenset(names)
        return 1.0 if wanted - self.names else _share(self, wanted, num_ranks)

    def unused_by(self, rank: int, num_ranks: int, step: int) -> frozenset[str]:
        """Return what one of `num_ranks` ranks does not use in a step of a replay, which repeats the sampled steps."""
        sampled = self.steps[step % len(self.steps)]
        if rank < self.num_ranks:
            used = sampled[(rank + step) % self.num_ranks]
        else:
            everyone = [one for of_step in self.steps for one in of_step]
            used = random.Random(step * num_ranks + rank).choice(sampled if self.is_shared else everyone)
        return frozenset(name for group, bit in zip(self.groups, used, strict=True) if bit == "0" for name in group)

    def drawn(self, num_ranks: int) -> tuple[tuple[frozenset[str], float], ...]:
        """Return what none of `num_ranks` ranks uses in some drawn steps, each with the share of these steps.

        The steps are the same at every call.
        """
        return _drawn(self, num_ranks)


@functools.lru_cache(maxsize=64)
def _is_shared(sample: UseSample) -> bool:
    patterns = [[int(one, 2) for one in step] for step in sample.steps]
    within = [_distance(pair) for step in patterns for pair in itertools.combinations(step, 2)]
    across = [
        _distance((first, second))
        for one, other in itertools.combinations(patterns, 2)
        for first, second in itertools.product(one, other)
    ]
    if not within or not across:
        return False
    return sum(within) / len(within) < ALIKE * sum(across) / len(across)


def _distance(pair: Sequence[int]) -> int:
    first, second = pair
    return (first ^ second).bit_count()


@functools.lru_cache(maxsize=4096)
def _share(sample: UseSample, names: frozenset[str], num_ranks: int) -> float:
    mask = "".join("1" if not names.isdisjoint(group) else "0" for group in sample.groups)
    wanted, most = int(mask, 2), sample.num_ranks
    users = [sum(bool(int(one, 2) & wanted) for one in step) for step in sample.steps]
    if num_ranks <= most:
        ways = math.comb(most, num_ranks)
        return sum(1 - math.comb(most - count, num_ranks) / ways for count in users) / len(users)
    in_whole_step = sum(count > 0 for count in users) / len(users)
    if sample.is_shared:
        return in_whole_step
    return 1 - (1 - in_whole_step) * (1 - sum(users) / (most * len(users))) ** (num_ranks - most)


@functools.lru_cache(maxsize=64)
def _drawn(sample: UseSample, num_ranks: int) -> tuple[tuple[frozenset[str], float], ...]:
    chance = random.Random(0)
    # Sorted, so that evenly spaced steps have each kind of step about as often as the sample has it.
    ordered = sorted(sample.steps)
    everyone = [one for step in sample.steps for one in step]
    found: Counter[frozenset[str]] = Counter()
    for number in range(NUM_DRAWN):
        step = ordered[int((number + 0.5) / NUM_DRAWN * len(ordered))]
        ranks = chance.sample(step, min(num_ranks, sample.num_ranks))
        ranks += chance.choices(step if sample.is_shared else everyone, k=num_ranks - len(ranks))
        unused = [group for place, group in enumerate(sample.groups) if all(one[place] == "0" for one in ranks)]
        found[frozenset(name for group in unused for name in group)] += 1
    return tuple((unused, count / NUM_DRAWN) for unused, count in found.items())


def check_use(sample: UseSample | None, names: Collection[str]) -> None:
    """Raise ValueError unless a sample is one of a model with the variables `names`."""
    if sample is None:
        return
    if strangers := sample.names.difference(names):
        raise ValueError(f"use_sample names {min(strangers)!r} (its groups have the spec's variables)")
    if sample.names.issuperset(names) and any("1" not in one for step in sample.steps for one in step):
        raise ValueError("a rank of use_sample uses no variable (the loss of each step has a gradient)")


def sample_of(series: Sequence[Sequence[Collection[str]]], names: Sequence[str]) -> UseSample | None:
    """Return the sample of ranks that used these variables, by rank and step; None if all used all `names` always."""
    steps = list(zip(*series, strict=True))
    used_in: dict[str, tuple[bool, ...]] = {
        name: tuple([name in used for step in steps for used in step]) for name in names
    }
    together: dict[tuple[bool, ...], list[str]] = {}
    for name, uses in used_in.items():
        if not all(uses):
            together.setdefault(uses, []).append(name)
    if not together:
        return None
    groups = tuple(tuple(group) for group in together.values())
    return UseSample(
        groups=groups,
        steps=tuple(
            tuple("".join("1" if group[0] in used else "0" for group in groups) for used in step) for step in steps
        ),
    )
