"""Real ranks that compute uneven shares of the batch train as one process does on the global batch."""

from collections.abc import Callable
from typing import Any

import pytest

OF_SIX, OF_TWELVE = (1, 2, 3), (7, 4, 1)

DIVIDED = [
    ("transformer", "ddp", OF_SIX),
    ("transformer", "bytescheduler", OF_SIX),
    ("convnet", "sharded", OF_SIX),
    ("convnet", "p3", OF_SIX),
    ("odd", "ps_load_balanced", OF_TWELVE),
    ("clipped", "byteps", OF_TWELVE),
    ("small", "fsdp", OF_TWELVE),
    ("tokens", "ddp", OF_TWELVE),
    ("tokens", "sharded", OF_TWELVE),
    ("tokens", "bytescheduler", (4, 4, 4)),
    ("rows", "horovod_fusion", OF_TWELVE),
    ("rows", "parallax", OF_TWELVE),
    ("masked_rows", "horovod_fusion", OF_TWELVE),
    ("masked_rows", "ps_load_balanced", (4, 4, 4)),
]


@pytest.mark.timeout(200)
def test_shares_train_as_one_process_does(make_ranks: Callable[[str], Any]) -> None:
    ranks = make_ranks("unequal")
    cases: list[tuple[str, dict[str, Any]]] = []
    for task, preset, shares in DIVIDED:
        bundle = ranks.divided_bundle(preset, task, shares)
        cases.append(("share_cases:shared", {"name": task, "bundle": bundle, "shares": shares}))
    small = {"name": "small", "bundle": ranks.divided_bundle("ddp", "small", OF_TWELVE), "shares": OF_TWELVE}
    weightless = {"bundle": ranks.bundle("ddp", "tokens")}
    cases += [("share_cases:weightless", weightless), ("share_cases:reweighed", small), ("share_cases:refused", small)]
    cases.append(("share_cases:weighed_apart", {"bundle": ranks.bundle("local_sgd", "small")}))
    for *exact, refused, weighed_apart in ranks.run(cases):
        assert exact == [""] * (len(cases) - 2)
        assert isinstance(refused, dict), refused
        assert "the bundle gives it" in refused["another batch"]
        assert "whose weight is not known" in refused["no weight"]
        assert "each rank trains alone" in weighed_apart
