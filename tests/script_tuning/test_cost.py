"""What tuning cost, in steps and time, and when it has paid."""

from __future__ import annotations

import pytest

from autosync.script_tuning.cost import TuningCost


def _cost(wall_seconds: float, winner_seconds: float = 0.1) -> TuningCost:
    return TuningCost(num_steps=100, wall_seconds=wall_seconds, stock_seconds=0.2, winner_seconds=winner_seconds)


def test_time_that_is_lost_is_won_back_step_by_step() -> None:
    cost = _cost(25.0)
    assert cost.lost_seconds == pytest.approx(5.0)
    # 5 s at 0.1 s a step.
    assert cost.break_even_step == 150
    assert str(cost) == (
        "tuning took 100 steps of the training, in 25 s: 5 s more than under stock DDP; with the winner, the run is "
        "ahead of stock DDP from step 150 on"
    )


def test_tuning_that_was_faster_than_stock_ddp_has_cost_nothing() -> None:
    cost = _cost(18.0)
    assert cost.break_even_step == 100
    assert str(cost) == "tuning took 100 steps of the training, in 18 s: 2 s less than under stock DDP"


def test_without_a_faster_winner_nothing_is_won_back() -> None:
    cost = _cost(25.0, winner_seconds=0.2)
    assert cost.break_even_step is None
    assert cost.fields() == {"num_steps": 100, "wall_seconds": 25.0, "lost_seconds": 5.0, "break_even_step": None}
    assert "ahead" not in str(cost)
