"""The weight of this rank's batch: the factor of its gradients in the mean over the global batch.

autosync cannot see how many examples a script's batches have, so a bundle with shares trains only if the script says
so. It promises the batch of the rank's share once (`parallelize(..., batch_size=…)`); then the factor is that of the
share in every step. Or it calls `autosync.weigh` before each backward pass with the weight of the batch (its examples,
tokens, or unmasked positions). Then ranks tell each other their weights, and the factor is the rank's weight over their
mean. This exchange of a number between all workers is not part of the plan, like the broadcast of buffers.
"""

from __future__ import annotations

import math

import torch

from autosync.errors import OperationError
from autosync.plan.expansion import expand
from autosync.plan.types import Plan
from autosync.runtime.wire.exchange import Exchange
from autosync.runtime.wire.flow_control import Flow
from autosync.runtime.wire.links import Links
from autosync.runtime.wire.transfer_pieces import cut_moves
from autosync.strategy.synchronisers.rules import ALONE

_TAG = 2**29 - 2
"""The tag of these messages; no operation of a plan has this number."""


class BatchWeight:
    """The factor of one rank's gradients, step by step. `batch_size` is what the script has promised, if it has.

    With `trains_apart`, ranks make steps with their own gradients, and weights are refused.
    """

    def __init__(self, plan: Plan, links: Links, *, batch_size: int | None, trains_apart: bool = False) -> None:
        self._links = links
        self._trains_apart = trains_apart
        self._num_workers = plan.num_workers
        self._usual = plan.weights[links.rank]
        self._is_known = not plan.weighs and (not plan.shares or batch_size is not None)
        self._exchange = Exchange(links, Flow())
        self._of_step: float | None = None

    @staticmethod
    def check(plan: Plan, rank: int, batch_size: int | None) -> None:
        """Refuse a promised batch that is not the rank's share."""
        if batch_size is not None and plan.shares and plan.shares[rank] != batch_size:
            raise OperationError(
                f"batches of {batch_size} examples on rank {rank}; the bundle gives it {plan.shares[rank]} of "
                f"{sum(plan.shares)} (autosync.share_sampler deals batches by the bundle's shares)"
            )

    def measure(self, weight: float) -> None:
        """Take the weight of the next step's batch. All workers call this for the same step."""
        # What a script gives may be anything.
        given: object = weight
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < math.inf:
            raise OperationError(f"the weight {weight!r} of a batch (a finite number of 0 or more)")
        if self._of_step is not None:
            raise OperationError("a second weight for one step (weigh the batch once, before its backward pass)")
        if self._trains_apart and self._num_workers > 1:
            raise OperationError(
                f"a weight under periodic averages: {ALONE} (train without autosync.weigh, or with a bundle that adds "
                "up the gradients of all ranks)"
            )
        weights = self._weights_of_all(float(weight))
        total = math.fsum(weights)
        if total <= 0:
            raise OperationError("the batches of all ranks together weigh nothing (at least one weight is above 0)")
        self._of_step = weight * self._num_workers / total

    def step_ends(self) -> None:
        """Forget the weight of a step whose gradients have all been weighed."""
        self._of_step = None

    @property
    def factor(self) -> float:
        """The factor of this rank's gradients in the step under way."""
        factor = self._of_step
        if factor is None:
            if not self._is_known:
                raise OperationError(
                    "a backward pass of a batch whose weight is not known, under a bundle that weighs gradients "
                    "(autosync.weigh(model, weight) comes before each backward pass; for equal shares in every step, "
                    "parallelize(..., batch_size=…) says once how many examples this rank's batches have)"
                )
            factor = self._usual
        return factor

    def _weights_of_all(self, weight: float) -> list[float]:
        if self._num_workers == 1:
            return [weight]
        weights = torch.zeros(self._num_workers, dtype=torch.float64)
        weights[self._links.rank] = weight
        moves = expand("all_gather", "ring", self._num_workers)
        pieces = cut_moves(moves, range(self._num_workers + 1), position=self._links.rank, item_bytes=8)
        self._exchange.run(pieces, weights, members=range(self._num_workers), tag=_TAG, priority=0)
        return weights.tolist()
