"""What the engine trains is what stock DDP trains: real ranks, every preset and samples of the space, in float64."""

from collections.abc import Callable
from typing import Any

import pytest

# How many samples of each task, beside the presets. Every rank costs seconds to start, every strategy a tenth.
NUM_SAMPLES = {
    "one node": {"transformer": 15, "convnet": 4, "odd": 2, "clipped": 4},
    "two nodes": {"transformer": 15, "convnet": 0},
    "four nodes": {"transformer": 15, "clipped": 0},
    "unequal": {"transformer": 6},
}


@pytest.mark.parametrize("cluster", list(NUM_SAMPLES))
def test_training_is_that_of_stock_ddp(cluster: str, make_ranks: Callable[[str], Any]) -> None:
    ranks = make_ranks(cluster)
    bundles = {
        (task, name): bundle
        for task, count in NUM_SAMPLES[cluster].items()
        for name, bundle in ranks.bundles(task, count).items()
    }
    answers = ranks.run([("exact", {"task": task, "bundle": bundle}) for (task, _), bundle in bundles.items()])
    for rank, given in enumerate(answers):
        found = {name: answer for (_, name), answer in zip(bundles, given, strict=False) if answer}
        assert found == {}, f"rank {rank}"
        assert len(given) == len(bundles), f"rank {rank} did not come to its end:\n{(ranks.folder / 'log').read_text()}"
