"""`autosync.share_sampler`: the batches of one rank by the shares of a bundle, for torch's DataLoader.

All ranks compute the same order of an epoch (`EpochOrder`), and cut it into steps of the bundle's global batch. Each
rank takes its share of every step. An epoch sees each example once. If examples are left for a smaller last step, they
are dealt in proportion to the shares, at least one to each rank. If they are fewer than ranks, they join the step
before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from itertools import accumulate, pairwise
from pathlib import Path

import torch.distributed as dist
from torch.utils.data import Sampler

from autosync.errors import InputError, OperationError
from autosync.inputs.epoch_order import EpochOrder, enough_for, step_sizes
from autosync.strategy.bundle import Bundle, bundle_at_hand, load_bundle
from autosync.strategy.shares import deal


def share_sampler(
    dataset: Sized | int,
    bundle: Bundle | Path | str | None = None,
    *,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
    rank: int | None = None,
) -> ShareSampler:
    """Return this rank's batches of a dataset, as many examples as the bundle's strategy gives it.

    Pass it on as `DataLoader(dataset, batch_sampler=…)`, and call `set_epoch` before each epoch, as with torch's
    DistributedSampler. Without a bundle, the one that AUTOSYNC_BUNDLE names is used. `drop_last` leaves out the
    examples of an epoch that do not make a whole step; without it, the last step may have another size, and
    `autosync.weigh` must be called in each step.
    """
    found = bundle if isinstance(bundle, Bundle) else load_bundle(bundle or bundle_at_hand())
    workers = found.cluster.num_workers
    return ShareSampler(
        dataset if isinstance(dataset, int) else len(dataset),
        found.strategy.shares or (found.model.batch_size,) * workers,
        rank=dist.get_rank() if rank is None else rank,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
    )


class ShareSampler(Sampler[list[int]]):
    """Deals the examples of each epoch to ranks by `shares`, and yields the batches of one rank."""

    def __init__(
        self,
        num_examples: int,
        shares: tuple[int, ...],
        *,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if not 0 <= rank < len(shares):
            raise InputError(f"rank {rank} of {len(shares)}", rule="shares are those of the ranks that train")
        self.shares = shares
        self._rank = rank
        self._epoch = 0
        self._order = EpochOrder(
            shard_sizes=(num_examples,), batch_size=1, shuffle="examples" if shuffle else "none", seed=seed
        )
        self._sizes = step_sizes(num_examples, sum(shares), len(shares), drop_last=drop_last)
        if not self._sizes:
            rule = enough_for(sum(shares), len(shares), drop_last=drop_last)
            raise InputError(f"{num_examples} examples", rule=rule)

    @property
    def batch_size(self) -> int:
        """The examples in each of this rank's batches, to be promised to `parallelize`."""
        if self._sizes[-1] != sum(self.shares):
            raise OperationError(
                f"the last step of an epoch has {self._sizes[-1]} examples and the others {sum(self.shares)}: "
                "batches have no one size (call autosync.weigh(model, len(batch)) in each step, or drop_last=True)"
            )
        return self.shares[self._rank]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[list[int]]:
        examples = self._order.examples(self._epoch)
        for begin, end in pairwise(accumulate(self._sizes, initial=0)):
            shares = self.shares if end - begin == sum(self.shares) else deal(end - begin, self.shares)
            first = begin + sum(shares[: self._rank])
            yield examples[first : first + shares[self._rank]].tolist()
