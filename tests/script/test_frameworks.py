"""Unchanged scripts of frameworks that construct DDP themselves, if these frameworks are installed."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

SITE = Path(__file__).parents[1] / "script_suite" / "site" / "sitecustomize.py"
FRAMEWORKS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "accelerate": ("with_accelerate", {"clip_norm": 1.0}, ("ddp", "bytescheduler", "byteps", "with_workers")),
    "transformers": ("with_trainer", {"clip_norm": 1.0}, ("ddp", "bytescheduler", "byteps", "with_workers")),
    "lightning": ("with_lightning", {}, ("ddp", "servers", "bytescheduler", "with_workers")),
}


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_trains_to_the_weights_of_stock_ddp(ranks: Any, framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed: make scripts-suite installs it")
    # This process makes the bundles: it imports torchvision too, whose wheel may lack operators.
    runpy.run_path(str(SITE))
    script, options, ways = FRAMEWORKS[framework]
    stock = ranks.run(script, None)
    assert stock.codes == (0, 0), stock.logs
    for way in ways:
        ours = ranks.run(script, way, models=(options,))
        assert ours.codes == (0, 0), (way, *ours.logs)
        assert ("its bundle 2 workers" in ours.logs[0]) == (way == "with_workers"), ours.logs[0]
        for expected, found in zip(stock.saved, ours.saved, strict=True):
            for name, values in expected["model"].items():
                torch.testing.assert_close(found["model"][name], values, rtol=1e-6, atol=1e-8)
            assert found.get("losses") == expected.get("losses")
