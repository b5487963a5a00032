"""A rank that runs a script answers each request, also if what it was asked for fails in an unforeseen way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autosync.errors import OperationError, TaskError
from autosync.script.step_meter import StepMeter
from autosync.script.switching_door import SwitchingDoor
from autosync.script_tuning.rank import ScriptRank
from autosync.trials.rank_requests import RefusedError, RequestLoop


class _Loop:
    """Has some requests, and keeps the answers to them."""

    def __init__(self, *requests: Mapping[str, Any]) -> None:
        self._requests = list(requests)
        self.failures: list[tuple[str, BaseException]] = []

    def next_request(self) -> Mapping[str, Any]:
        return self._requests.pop(0)

    def answer(self, request: Mapping[str, Any], _: object) -> None:
        assert request["request"] == "stop"

    def fail(self, request: Mapping[str, Any], error: BaseException) -> None:
        self.failures.append((request["request"], error))


def _raising(error: Exception) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise error

    return call


def _rank(loop: _Loop) -> ScriptRank:
    rank = ScriptRank()
    rank._loop = cast("RequestLoop", loop)
    return rank


def _door(**methods: Any) -> SwitchingDoor:
    usual = {"observe": lambda: None, "train_by": lambda _: None}
    switch = SimpleNamespace(bundle=None)
    door = SimpleNamespace(meter=StepMeter(), refusal=None, switch=switch, **usual | methods)
    return cast("SwitchingDoor", door)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OperationError("it has frozen a layer"), "it has frozen a layer"),
        (TaskError("a name has brackets", rule="none"), "a name has brackets (none)"),
        (ValueError("a list"), "its observed steps make no model: ValueError: a list"),
        (IndexError("of nothing"), "its observed steps make no model: IndexError: of nothing"),
    ],
)
def test_what_an_observation_fails_with_is_refused_in_words(error: Exception, words: str) -> None:
    loop = _Loop({"request": "observe", "num_steps": 0}, {"request": "stop"})
    rank, door = _rank(loop), _door(facts=_raising(error))
    rank.step_begins(door)
    with pytest.raises(SystemExit):
        rank.step_begins(door)
    ((name, refused),) = loop.failures
    assert (name, str(refused)) == ("observe", words)
    assert isinstance(refused, RefusedError)
    assert refused.__cause__ is error


def test_a_run_that_cannot_be_settled_is_answered() -> None:
    error = RuntimeError("a connection was closed")
    request = {"request": "run", "num_steps": 0, "strategy": None, "strategy_id": None, "settle": True}
    loop = _Loop(request, {"request": "stop"})
    rank, door = _rank(loop), _door()
    door.switch.settle = _raising(error)  # type: ignore[method-assign]
    rank.step_begins(door)
    with pytest.raises(SystemExit):
        rank.step_begins(door)
    assert loop.failures == [("run", error)]


def test_a_strategy_that_fails_to_begin_is_answered_and_ends_the_script() -> None:
    error = RuntimeError("a connection was closed")
    request = {"request": "run", "num_steps": 2, "strategy": None, "strategy_id": "other"}
    loop = _Loop(request)
    with pytest.raises(RuntimeError, match="a connection was closed"):
        _rank(loop).step_begins(_door(train_by=_raising(error)))
    assert loop.failures == [("run", error)]


def test_a_refused_strategy_leaves_the_script_as_it_is() -> None:
    request = {"request": "run", "num_steps": 2, "strategy": None, "strategy_id": "other"}
    loop, are_refused = _Loop(request, {"request": "stop"}), iter([True, False])

    def put(_: object) -> None:
        if next(are_refused):
            raise OperationError("it does not fit")

    with pytest.raises(SystemExit):
        _rank(loop).step_begins(_door(train_by=put))
    ((name, refused),) = loop.failures
    assert name == "run"
    assert isinstance(refused, RefusedError)
