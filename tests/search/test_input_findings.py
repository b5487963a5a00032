"""What a verdict says of the input settings."""

from dataclasses import replace

import pytest

from autosync.datasets.measured_input import MeasuredInput
from autosync.datasets.schema import Measurement
from autosync.search.candidates import STOCK_DDP, Candidate
from autosync.search.guarantee import ProofContestant, ProofResult
from autosync.search.input_findings import input_findings
from autosync.specs.input_cost import InputCost
from autosync.specs.input_settings import InputSettings
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Message, Strategy
from autosync.testing.simulators import two_layers
from autosync.trials.contestant import Contestant

PLAIN = Strategy(messages=(Message(parts=("second", "first")),))


@pytest.fixture
def model() -> ModelSpec:
    return replace(two_layers(), input=InputCost(worker_seconds=0.01, by_loader=True))


def _result(strategy: Strategy | None, *waits: float) -> ProofResult:
    chosen = STOCK_DDP if strategy is None else Candidate(strategy_id="s", origin="mutated", strategy=strategy)
    contestant = ProofContestant(role="finalist", candidate=chosen, run_as=Contestant(name="c"))
    return ProofResult(contestant=contestant, measurement=_measured(*waits), ratio=None)


def _measured(*waits: float) -> Measurement:
    return Measurement(
        step_seconds=((0.1,), (0.1,)),
        median_seconds=0.1,
        low_seconds=0.1,
        high_seconds=0.1,
        num_warmup_steps=4,
        peak_memory_bytes=(1, 1),
        cpu_share=0.1,
        bytes_sent=None,
        bytes_received=None,
        exposed_seconds=None,
        input=MeasuredInput(wait_seconds=waits) if waits else None,
    )


def test_both_settings_and_waits_are_told(model: ModelSpec) -> None:
    winner = replace(PLAIN, input=InputSettings(num_workers=4))
    found = input_findings(_result(winner, 0.001, 0.002), _result(None, 0.05, 0.04), model)
    assert found == {
        "settings": "4 workers, prefetch 2",
        "default_settings": "2 workers, prefetch 2",
        "wait_seconds": 0.002,
        "default_wait_seconds": 0.05,
        "in_words": (
            "4 workers, prefetch 2 in place of 2 workers, prefetch 2; a step waits 2 ms for its batch, on the rank "
            "that waits longest, and 50 ms with stock DDP"
        ),
    }


def test_what_is_not_changed_is_told(model: ModelSpec) -> None:
    found = input_findings(_result(None, 0.05, 0.04), _result(None, 0.05, 0.04), model)
    assert found is not None
    assert str(found["in_words"]).startswith("2 workers, prefetch 2, as without tuning; a step waits 50 ms")


def test_stated_settings_are_what_is_compared_with(model: ModelSpec) -> None:
    assert model.input is not None
    stated = replace(model, input=replace(model.input, stated=InputSettings(num_workers=8)))
    winner = replace(PLAIN, input=InputSettings(num_workers=4))
    found = input_findings(_result(winner, 0.001, 0.001), _result(None, 0.05, 0.05), stated)
    assert found is not None
    assert str(found["in_words"]).startswith("4 workers, prefetch 2 in place of 8 workers, prefetch 2; a step waits")


def test_recorded_trials_may_not_know_waits(model: ModelSpec) -> None:
    found = input_findings(_result(PLAIN), _result(None), model)
    assert found is not None
    assert found["wait_seconds"] is None
    assert found["in_words"] == "2 workers, prefetch 2"


def test_other_models_have_none(model: ModelSpec) -> None:
    for other in (two_layers(), replace(model, input=InputCost(worker_seconds=0.01))):
        assert input_findings(_result(PLAIN, 0.1, 0.1), _result(None, 0.1, 0.1), other) is None
