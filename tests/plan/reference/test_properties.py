"""Random strategies have every property of plans; and each check can fail."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from tests.plan.reference import plan_properties as properties


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_random_strategies_have_every_property(seed: int) -> None:
    result = properties.try_all(properties.draw(random.Random(f"slice {seed}"), 50))
    assert result["count"] == 50
    assert result["failures"] == []
    everywhere = {"legal", "yaml", "json", "strategy_id", "one plan", "plan_id", "no deadlock", "bytes"}
    assert {name: result["held"][name] for name in everywhere} == dict.fromkeys(everywhere, 50)
    assert result["held"]["exact"] > 10


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_random_strategies_have_every_property() -> None:
    result = properties.try_all(properties.draw(random.Random(1), 2000))
    assert result["failures"] == []
    assert set(result["classes"]) == {"exact", "lossy", "stale", "lossy+stale"}
    assert result["held"]["error feedback"] > 10
    assert result["held"]["faithful codecs"] > 100


def test_the_same_seed_draws_the_same_cases() -> None:
    assert list(properties.draw(random.Random(7), 9)) == list(properties.draw(random.Random(7), 9))


def test_a_case_is_read_back_as_it_was() -> None:
    for case in properties.draw(random.Random(3), 40):
        again = properties.read_case(properties.dump_case(case))
        assert (again.strategy, again.seed) == (case.strategy, case.seed)
        assert again.model.fingerprint() == case.model.fingerprint()
        assert again.cluster.fingerprint() == case.cluster.fingerprint()


def test_an_illegal_strategy_is_reported_with_its_case() -> None:
    case = next(properties.draw(random.Random(0), 1))
    message = replace(case.strategy.messages[0], synchroniser=ParameterServer(server="nowhere"))
    broken = replace(case, strategy=replace(case.strategy, messages=(message, *case.strategy.messages[1:])))
    result = properties.try_all(iter([case, broken]))
    assert (result["count"], result["failed"]) == (2, 1)
    assert "unknown node 'nowhere'" in result["failures"][0]["why"]
    assert properties.read_case(result["failures"][0]).strategy == broken.strategy


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("a transfer too many", lambda plan: replace(plan, operations=_with_more_bytes(plan.operations))),
        ("no gates", lambda plan: replace(plan, gates=())),
        ("one worker more", lambda plan: replace(plan, num_workers=plan.num_workers + 1)),
    ],
)
def test_a_lowering_that_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch, what: str, change: object) -> None:
    lower = properties.lower
    cases = [
        case
        for case in properties.draw(random.Random(0), 60)
        if case.cluster.num_workers > 2 and isinstance(case.strategy.messages[0].synchroniser, AllReduce)
    ]
    assert cases
    monkeypatch.setattr(properties, "lower", lambda *arguments: change(lower(*arguments)))  # type: ignore[operator]
    assert properties.try_all(iter(cases))["failed"], what


def _with_more_bytes(operations: tuple[object, ...]) -> tuple[object, ...]:
    """Every transfer claims an element more than its regions have."""
    return tuple(
        operation._replace(num_elements=operation.num_elements + 1) if hasattr(operation, "collective") else operation
        for operation in operations
    )
