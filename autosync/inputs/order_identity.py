"""What the order of all examples depends on: a state goes on only in the order it is of, and ranks share one order."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from autosync import jsonio
from autosync.errors import InputError, Problem
from autosync.inputs.dataset_facts import own
from autosync.inputs.epoch_order import EpochOrder

_NAMES = "shard_names"
_WITHOUT_WORDS = {
    "shards": "its shards have other sizes, or another order",
    _NAMES: "its shards have other names, or another order",
}


def identity_of(order: EpochOrder, dataset: object) -> dict[str, Any]:
    """Return what the order of all examples depends on."""
    names = own(dataset, "shards_digest")
    return {
        "seed": order.seed,
        "shuffle": order.shuffle,
        "num_examples": order.num_examples,
        "shards": jsonio.content_hash(list(order.shard_sizes)),
        **({} if names is None else {_NAMES: names}),
    }


def refuse_another_order(stated: Any, mine: Mapping[str, Any]) -> None:
    """Raise if a state is of another order than the loader's."""
    expected = dict(mine)
    if isinstance(stated, Mapping) and (_NAMES in stated) != (_NAMES in expected):
        # Older states know no names of shards, as other datasets do.
        stated, expected = ({name: one[name] for name in one if name != _NAMES} for one in (stated, expected))
    if stated != expected:
        raise InputError(
            f"the state is of another order: {stated}",
            rule=f"the same seed, shuffle and dataset as the loader's, its shards in the same order: {expected}",
        )


def refuse_other_ranks(order: EpochOrder, dataset: object) -> None:
    """Raise if another rank of torch.distributed has made its loader of another order, or of other batches.

    A rank compares with the first one that has made this loader, and waits for none.
    """
    mine = {**identity_of(order, dataset), "batch_size": order.batch_size, "drop_last": order.drop_last}
    mine["shares"] = list(order.shares)
    store: Any = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no other way to ask
    # A store can outlive the processes when a launcher restarts them.
    prefix = f"autosync/loaders/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    number = store.add(f"{prefix}/of/{order.rank}", 1)
    told = jsonio.canonical_json({"rank": order.rank, "order": mine})
    first = json.loads(store.compare_set(f"{prefix}/{number}", "", told))
    theirs = first["order"]
    other = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
    if other:
        words = [_WITHOUT_WORDS.get(name) or f"{name} is {mine[name]} and not {theirs[name]}" for name in other]
        what = f"rank {order.rank} orders examples otherwise than rank {first['rank']}: {'; '.join(words)}"
        rule = (
            "all ranks make the same loaders, one after the other, of the same shards in the same order (glob gives "
            "any order: sort it); a loader of one rank alone has the arguments rank=0, world_size=1"
        )
        raise InputError([Problem(what=what, rule=rule, path=("dataset",))])
