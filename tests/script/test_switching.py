"""A script whose strategy changes while it trains comes out as under stock DDP all the time."""

from __future__ import annotations

from typing import Any

import pytest

# Torch's reducer; the engine with the user's optimizer; the engine with its own updates and overlap with the next
# forward pass. Stock DDP takes the first turn.
WAYS = ("bytescheduler", "servers", "ddp", "byteps")


@pytest.mark.parametrize(
    ("script", "model", "tolerance"),
    [
        ("plain", {}, 1e-9),
        pytest.param("accumulates", {"clip_norm": 1.0}, 1e-9, marks=pytest.mark.slow),
        ("closures", {"clip_norm": 1.0}, 1e-9),
        ("mixed_precision", {"loss_scaling": True}, 1e-3),
        ("sparse", {}, 1e-9),
        ("unused", {}, 1e-9),
        ("phases", {}, 1e-9),
        ("static", {}, 1e-9),
        pytest.param("compiled", {}, 1e-9, marks=pytest.mark.slow),
    ],
)
def test_strategies_in_turn_train_to_the_weights_of_stock_ddp(
    ranks: Any, compare: Any, script: str, model: dict[str, Any], tolerance: float
) -> None:
    stock = ranks.stock(script)
    turns = ranks.run_in_turns(script, WAYS, steps_a_turn=1, **model)
    assert turns.codes == (0, 0), turns.logs
    for expected, found in zip(stock.saved, turns.saved, strict=True):
        compare(found, expected, script, tolerance)


@pytest.mark.parametrize("way", ["ddp", "bytescheduler"])
def test_what_a_winner_does_not_fit_goes_on_under_stock_ddp(ranks: Any, compare: Any, way: str) -> None:
    stock = ranks.stock("freezes")
    found = ranks.run_by_winner("freezes", way, num_tuned=2)
    assert found.codes == (0, 0), found.logs
    assert all("wrapped its model anew, and the strategy does not fit it" in log for log in found.logs), found.logs
    for expected, saved in zip(stock.saved, found.saved, strict=True):
        compare(saved, expected, "freezes", 1e-9)


def test_what_a_strategy_on_trial_does_not_fit_goes_on_under_stock_ddp(ranks: Any, compare: Any) -> None:
    stock = ranks.stock("freezes")
    found = ranks.run_by_winner("freezes", "bytescheduler", num_tuned=2, is_over=False, arguments=("alone",))
    assert found.codes == (0, 0), found.logs
    assert all("wrapped its model anew, and the strategy does not fit it" in log for log in found.logs), found.logs
    for expected, saved in zip(stock.saved, found.saved, strict=True):
        compare(saved["model"], expected["model"], "freezes", 1e-9)


@pytest.mark.parametrize("way", ["ddp", "bytescheduler"])
def test_a_model_that_takes_the_parameters_of_the_first_goes_on_under_stock_ddp(
    ranks: Any, compare: Any, way: str
) -> None:
    stock = ranks.stock("pretrains")
    found = ranks.run_by_winner("pretrains", way, num_tuned=2)
    assert found.codes == (0, 0), found.logs
    for expected, saved in zip(stock.saved, found.saved, strict=True):
        compare(saved, expected, "pretrains", 1e-9)


@pytest.mark.parametrize("way", ["ddp", "bytescheduler"])
def test_a_thawed_parameter_goes_on_under_stock_ddp(ranks: Any, compare: Any, way: str) -> None:
    """Torch's Reducer has the parameter, because it was frozen after it was wrapped; the strategy has it not."""
    stock = ranks.stock("thaws")
    found = ranks.run_by_winner("thaws", way, num_tuned=2)
    assert found.codes == (0, 0), found.logs
    assert all("the script has thawed 0.weight" in log for log in found.logs), found.logs
    for expected, saved in zip(stock.saved, found.saved, strict=True):
        compare(saved, expected, "thaws", 1e-9)


def test_stock_ddp_comes_back_to_a_model_with_frozen_parameters(ranks: Any, compare: Any) -> None:
    stock = ranks.run("thaws", None, key="thaws-short", arguments=("5",))
    found = ranks.run_in_turns("thaws", ["bytescheduler"], steps_a_turn=1, arguments=("5",))
    assert stock.codes == found.codes == (0, 0), found.logs
    for expected, saved in zip(stock.saved, found.saved, strict=True):
        compare(saved, expected, "thaws", 1e-9)


@pytest.mark.parametrize("what", ["averages", "distils"])
def test_a_copy_that_is_not_trained_is_as_under_stock_ddp(ranks: Any, compare: Any, what: str) -> None:
    stock = ranks.run("does", None, key=f"{what}-stock", arguments=(what,))
    found = ranks.run_in_turns("does", ["bytescheduler"], steps_a_turn=1, arguments=(what,))
    assert stock.codes == found.codes == (0, 0), found.logs
    for expected, saved in zip(stock.saved, found.saved, strict=True):
        compare(saved, expected, what, 1e-9)


@pytest.mark.parametrize(("script", "arguments"), [("gan", ()), ("does", ("copies",))])
def test_a_second_model_is_refused(ranks: Any, script: str, arguments: tuple[str, ...]) -> None:
    found = ranks.run_in_turns(script, ["ddp"], steps_a_turn=1, arguments=arguments)
    assert found.codes == (1, 1), found.logs
    assert all("wraps a second model in DistributedDataParallel" in log for log in found.logs), found.logs


def test_an_earlier_wrapper_of_the_model_is_refused(ranks: Any) -> None:
    found = ranks.run_in_turns("does", ["ddp"], steps_a_turn=1, arguments=("two_wrappers",))
    assert found.codes == (1, 1), found.logs
    assert all("another DistributedDataParallel was put around the same Sequential" in log for log in found.logs)
