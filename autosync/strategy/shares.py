"""Shares: how many examples of the global batch each worker rank computes.

**What a strategy says.** `shares` of a strategy has a whole number of examples for each worker rank, in the order of
ranks. Together they are the global batch of a microstep: the task's `batch_size` times the number of workers. Shares
that are all equal are the default; they are left out of the canonical form, so files and ids without shares stay as
they are. A rank needs at least one example, because a rank without a backward pass cannot take part in a step.

**What it means.** Each rank's loss is the mean over its own examples, and training must follow the mean over the global
batch. So a rank's gradient is scaled by its weight before it enters the plan: by `shares[r] * n / sum(shares)`. All
operations then do what they always do: they sum over n ranks and divide by n, which makes

    (1/n) * sum over r of  n * shares[r] / sum(shares) * g_r   =   the gradient of the mean over the global batch.

The weight is applied once, where a rank's gradient is complete. Averages, codecs, merged rows and norms stay as they
are, and so do all sizes on the wire. (Scaling after the collective is not possible, because a sum does not tell its
parts; scaling the loss would need the script's help.) A loss that is a mean over something else than examples (tokens,
unmasked positions) has another weight in each step. Then the task's hook `weight(batch)` gives it, ranks add up their
weights, and `n * weight / total` replaces the shares' own weights.

**What is refused.** Periodic averaging trains each rank alone, and nothing says how much a rank's own steps are worth.
Sufficient factors have a row for each example, so their sizes would differ by rank, and plans have one size for all.
Layers that compute over their own batch (BatchNorm) are not exact, as under any data parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from autosync.errors import InputError, Path, Problem
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec

_MOST_NAMED = 12
_DECLARE = "declare the examples of a rank's batch in the task: batch_size"


def global_batch(model: ModelSpec, cluster: ClusterSpec) -> int:
    """Return the examples that all workers together compute in a microstep."""
    return model.batch_size * cluster.num_workers


def are_even(shares: Sequence[int]) -> bool:
    """Whether all ranks have equally many examples."""
    return len(set(shares)) < 2


def weights_of(shares: Sequence[float]) -> tuple[float, ...]:
    """Return the weight of each rank's mean gradient; the weights of all ranks have the mean 1."""
    total = math.fsum(shares)
    return tuple(share * len(shares) / total for share in shares)


def deal(num_examples: int, rates: Sequence[float]) -> tuple[int, ...]:
    """Return whole shares of `num_examples` in proportion to rates, each at least one example.

    Each rank gets the whole part of its proportion. The remaining examples go one by one to the rank that they delay
    least: the one that would finish first with one more.
    """
    if not rates or num_examples < len(rates):
        what = f"{num_examples} examples for {len(rates)} ranks"
        raise InputError(what, rule="each rank needs at least one example")
    if not all(0 < rate < math.inf for rate in rates):
        raise InputError(f"the rates {list(rates)}", rule="each rate is a finite number above 0")
    total = math.fsum(rates)
    shares = [max(1, math.floor(num_examples * rate / total)) for rate in rates]
    ranks = range(len(rates))
    while sum(shares) < num_examples:
        shares[min(ranks, key=lambda rank: ((shares[rank] + 1) / rates[rank], rank))] += 1
    while sum(shares) > num_examples:
        # Ranks that were raised to one example took it from the others.
        slowest = max((rank for rank in ranks if shares[rank] > 1), key=lambda rank: (shares[rank] / rates[rank], rank))
        shares[slowest] -= 1
    return tuple(shares)


def share_problems(shares: Sequence[int], model: ModelSpec, cluster: ClusterSpec) -> Iterator[Problem]:
    """Yield every rule that the numbers of shares break for a model on a cluster."""
    path: Path = ("shares",)
    num_workers, num_examples = cluster.num_workers, global_batch(model, cluster)
    if len(shares) != num_workers:
        yield Problem(what=f"{len(shares)} shares", rule=f"one for each of {num_workers} worker ranks", path=path)
        return
    for rank, share in enumerate(shares):
        if share < 1:
            rule = "each rank computes at least one example"
            yield Problem(what=f"rank {rank} has {share} examples", rule=rule, path=(*path, rank))
    if sum(shares) != num_examples:
        rule = f"they make the global batch: {num_workers} ranks with a batch of {model.batch_size}, {num_examples}"
        hint = _DECLARE if model.batch_size == 1 else ""
        yield Problem(what=f"the shares make {sum(shares)} examples", rule=rule, path=path, hint=hint)


def in_words(shares: Sequence[int]) -> str:
    """Return what the ranks compute in a phrase: `4, 4, 8 and 16 of 32 examples`."""
    shown = list(map(str, shares)) if len(shares) <= _MOST_NAMED else [*map(str, shares[:_MOST_NAMED]), "…"]
    return f"{', '.join(shown[:-1])} and {shown[-1]} of {sum(shares)} examples"
