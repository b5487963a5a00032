"""Unchanged scripts give the same result with each strategy as under stock DDP, or are refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

# By torch's reducer, and by the engine with its own updates and overlap with the next forward pass.
QUICK = ("ddp", "bytescheduler")
# By servers: the user's optimizer updates, and the engine's with that overlap.
SERVERS = ("servers", "byteps")

SCRIPTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "resumes": {},
    "accumulates": {"models": ({"clip_norm": 1.0},)},
    "closures": {"models": ({"clip_norm": 1.0},)},
    "mixed_precision": {"models": ({"loss_scaling": True},), "tolerance": 1e-3},
    "sparse": {},
    "gan": {"models": ({}, {"build": "build_critic", "batch": "batch_of_critic"})},
    "compiled": {},
    "unused": {},
    "recomputes": {},
    "phases": {},
    "pretrains": {"models": ({}, {"build": "build_classifier"})},
    # Where the engine updates it needs an optimizer.
    "by_hand": {"ways": ("ddp", "servers")},
}
SLOW = {"compiled"}


def _runs() -> Iterator[Any]:
    for script, options in SCRIPTS.items():
        ways = options.get("ways", (*QUICK, *SERVERS))
        quick = [way for way in ways if script not in SLOW and (way in QUICK or script in ("plain", "gan"))]
        if quick:
            yield pytest.param(script, quick, id=script)
        more = [way for way in ways if way not in quick]
        if more:
            yield pytest.param(script, more, id=f"{script} by {' '.join(more)}", marks=pytest.mark.slow)


@pytest.mark.parametrize(("script", "ways"), list(_runs()))
def test_a_script_trains_to_the_weights_of_stock_ddp(ranks: Any, compare: Any, script: str, ways: list[str]) -> None:
    options = SCRIPTS[script]
    models, tolerance = options.get("models", ({},)), options.get("tolerance", 1e-9)
    stock = ranks.stock(script)
    for way in ways:
        ours = ranks.run(script, way, models=models)
        assert ours.codes == (0, 0), (way, *ours.logs)
        for expected, found in zip(stock.saved, ours.saved, strict=True):
            compare(found, expected, f"{script} by {way}", tolerance)


@pytest.mark.parametrize("way", QUICK)
def test_a_model_that_is_frozen_at_first_begins_later(ranks: Any, compare: Any, way: str) -> None:
    stock = ranks.run("gan", None, key="gan-freezes-stock", arguments=("freezes",))
    ours = ranks.run("gan", way, key=f"gan-freezes-{way}", arguments=("freezes",), models=SCRIPTS["gan"]["models"])
    assert stock.codes == ours.codes == (0, 0), (*stock.logs, *ours.logs)
    for expected, found in zip(stock.saved, ours.saved, strict=True):
        compare(found, expected, f"gan by {way}", 1e-9)
