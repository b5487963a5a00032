"""The order of examples in each epoch, dealt to ranks: a pure function of seed, epoch, rank and number of ranks.

All ranks compute the order of the whole epoch and cut it into steps. Each rank takes its piece of every step. So ranks
do not overlap, nothing is left out, and an epoch can continue at any step, even with another number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from autosync.errors import InputError, Problem

Shuffle = Literal["none", "shards", "examples"]
Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOrder:
    """The batches of one rank in each epoch.

    `shard_sizes` has the number of examples of each shard; a dataset without shards is one. `batch_size` is that of a
    rank with the mean share. `shuffle` "examples" draws from all examples, so neighbours are rarely read together;
    "shards" shuffles shards and keeps the order within each. With `shares`, ranks take pieces of each step in this
    proportion. Without `drop_last`, the last step may have another size. All ranks have the same number of steps, and
    an example in each, because a rank without one would leave the others waiting.
    """

    shard_sizes: tuple[int, ...]
    batch_size: int
    shuffle: Shuffle = "examples"
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    shares: tuple[float, ...] = ()
    drop_last: bool = False

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise InputError(problems)
        pieces = [stop - start for start, stop in pairwise(self._cuts(self.step_size))]
        if min(pieces) < 1:
            what = f"rank {pieces.index(0)} would get no example of a step of {self.step_size}"
            raise InputError([Problem(what=what, rule="a share is large enough for one example", path=("shares",))])
        if not self.step_sizes():
            rule = enough_for(self.step_size, self.world_size, drop_last=self.drop_last)
            raise InputError([Problem(what=f"has {self.num_examples} examples", rule=rule, path=("dataset",))])

    @property
    def num_examples(self) -> int:
        return sum(self.shard_sizes)

    @property
    def step_size(self) -> int:
        """The number of examples that all ranks together take in a step, the last one excepted."""
        return self.batch_size * self.world_size

    def step_sizes(self, num_seen: int = 0) -> list[int]:
        """Return the examples of all ranks in each step of an epoch of which they have seen `num_seen`."""
        return step_sizes(self.num_examples - num_seen, self.step_size, self.world_size, drop_last=self.drop_last)

    def num_steps(self, num_seen: int = 0) -> int:
        """Return the number of steps in an epoch of which all ranks together have seen `num_seen`."""
        return len(self.step_sizes(num_seen))

    def examples(self, epoch: int) -> Numbers:
        """Return the numbers of all examples in the order of an epoch."""
        generator = np.random.default_rng([self.seed, epoch])
        if self.shuffle == "none":
            return np.arange(self.num_examples, dtype=np.int64)
        if self.shuffle == "examples":
            return generator.permutation(self.num_examples)
        ends = np.cumsum(self.shard_sizes)
        order = generator.permutation(len(self.shard_sizes))
        return np.concatenate([np.arange(ends[shard] - self.shard_sizes[shard], ends[shard]) for shard in order])

    def batches(self, epoch: int, num_seen: int = 0) -> Iterator[list[int]]:
        """Yield this rank's batches of an epoch, after the first `num_seen` examples of all ranks together."""
        left = self.examples(epoch)[num_seen:]
        sizes = self.step_sizes(num_seen)
        if len(left) and not sizes and not self.drop_last:
            raise InputError(
                f"{len(left)} examples of the epoch are left for {self.world_size} ranks",
                rule="one or more for each rank (go on with fewer ranks, or with the next epoch)",
            )
        for begin, end in pairwise(accumulate(sizes, initial=0)):
            cuts = self._cuts(end - begin)
            yield left[begin + cuts[self.rank] : begin + cuts[self.rank + 1]].tolist()

    def _cuts(self, size: int) -> list[int]:
        """Return where each rank's piece of `size` examples begins, and the end."""
        shares = np.asarray(self.shares or (1.0,) * self.world_size)
        parts = np.cumsum(shares / shares.sum())
        cuts = [0, *np.rint(parts * size).astype(int).tolist()]
        if size == self.step_size or all(begin < end for begin, end in pairwise(cuts)):
            return cuts
        # In a small step each rank gets one example first, and its share of the others.
        rest = np.rint(parts * (size - self.world_size)).astype(int)
        return [0, *(rest + np.arange(1, self.world_size + 1)).tolist()]


def step_sizes(num_examples: int, step: int, num_ranks: int, *, drop_last: bool) -> list[int]:
    """Return the examples in each step of an epoch; each has one for each rank or more, and no step may be left.

    Examples that are too few for a step of their own come with the last whole step, or are dropped.
    """
    whole, rest = divmod(num_examples, step)
    sizes = [step] * whole
    if rest and not drop_last:
        if rest >= num_ranks:
            sizes.append(rest)
        elif sizes:
            sizes[-1] += rest
    return sizes


def enough_for(step: int, num_ranks: int, *, drop_last: bool) -> str:
    """Return the rule of how many examples an epoch needs at least."""
    return f"an epoch has enough for {f'a step of {step}' if drop_last else f'one for each of {num_ranks} ranks'}"


def _problems(order: EpochOrder) -> Iterator[Problem]:
    for name, least in (("batch_size", 1), ("seed", 0), ("world_size", 1), ("rank", 0)):
        value: Any = getattr(order, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            yield Problem(what=f"is {value!r}", rule=f"a whole number of {least} or more", path=(name,))
            return
    if order.rank >= order.world_size:
        yield Problem(what=f"is {order.rank}", rule=f"below the number of ranks, {order.world_size}", path=("rank",))
    if order.shuffle not in get_args(Shuffle):
        yield Problem(what=f"is {order.shuffle!r}", rule=f"one of {', '.join(get_args(Shuffle))}", path=("shuffle",))
    if not order.shard_sizes or min(order.shard_sizes) < 0 or sum(order.shard_sizes) < 1:
        yield Problem(what="the dataset is empty", rule="one example or more", path=("dataset",))
    if order.shares and (len(order.shares) != order.world_size or not all(0 < one < np.inf for one in order.shares)):
        rule = f"a number above 0 for each of {order.world_size} ranks"
        yield Problem(what=f"are {order.shares}", rule=rule, path=("shares",))
