"""What the engine trains is what stock DDP trains: real ranks, every preset and samples of the space, in float64."""

from collections.abc import Callable
from typing import Any

import pytest

NUM_SAMPLES = {"transformer": 15, "convnet": 5, "odd": 4, "clipped": 4}


@pytest.mark.parametrize("cluster", ["one node", "two nodes", "four nodes", "unequal"])
def test_training_is_that_of_stock_ddp(cluster: str, make_ranks: Callable[[str], Any]) -> None:
    ranks = make_ranks(cluster)
    bundles = {
        (task, name): bundle
        for task, count in NUM_SAMPLES.items()
        for name, bundle in ranks.bundles(task, count).items()
    }
    answers = ranks.run([("exact", {"task": task, "bundle": bundle}) for (task, _), bundle in bundles.items()])
    for rank, given in enumerate(answers):
        found = {name: answer for (_, name), answer in zip(bundles, given, strict=False) if answer}
        assert found == {}, f"rank {rank}"
        assert len(given) == len(bundles), f"rank {rank} did not come to its end: {(ranks.folder / 'logs').iterdir()}"
