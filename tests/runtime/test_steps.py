"""Steps and turns of optimizers, whatever torch's hooks make of them."""

from typing import Any

import pytest
import torch
from torch import nn

from autosync.errors import OperationError
from autosync.runtime.local.joint_optimizer import Joint
from autosync.runtime.session.optimizer_steps import Steps, Turns


class CallsParent(torch.optim.SGD):
    fails = False

    def step(self, closure: Any = None) -> Any:
        if self.fails:
            raise ValueError("the user's own error")
        return super().step(closure)


class CallsTwice(CallsParent):
    """And each of them calls its own parent."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        return super().step(closure)


def parameter() -> nn.Parameter:
    made = nn.Parameter(torch.zeros(2))
    made.grad = torch.ones(2)
    return made


def watched(*optimizers: torch.optim.Optimizer, awaits_closures: bool = False) -> tuple[Steps, list[str]]:
    told: list[str] = []

    def begins(optimizer: torch.optim.Optimizer, given: tuple[Any, ...]) -> None:
        told.append(f"{type(optimizer).__name__} begins{''.join(f' with {one}' for one in given)}")

    def ends(optimizer: torch.optim.Optimizer) -> None:
        told.append(f"{type(optimizer).__name__} ends")

    return Steps(optimizers, begins=begins, ends=ends, awaits_closures=awaits_closures), told


@pytest.mark.parametrize("kind", [torch.optim.SGD, CallsParent, CallsTwice])
def test_a_step_is_one_step(kind: type[torch.optim.Optimizer]) -> None:
    # Whatever was made before in this process: from here on torch has hooks around the parent's step.
    torch.optim.SGD([parameter()], lr=0.1)
    optimizer: Any = kind([parameter()])
    steps, told = watched(optimizer)
    optimizer.step()
    optimizer.step()
    name = kind.__name__
    assert told == [f"{name} begins", f"{name} ends"] * 2
    steps.remove()
    optimizer.step()
    assert len(told) == 4


def test_a_step_that_fails_has_no_end_and_the_next_one_is_as_ever() -> None:
    torch.optim.SGD([parameter()], lr=0.1)
    optimizer = CallsParent([parameter()], lr=0.1)
    _, told = watched(optimizer)
    optimizer.fails = True
    for _ in range(2):
        with pytest.raises(ValueError, match="the user's own error"):
            optimizer.step()
    optimizer.fails = False
    optimizer.step()
    assert told == ["CallsParent begins"] * 3 + ["CallsParent ends"]


def test_what_a_step_is_called_with_is_told() -> None:
    optimizer: Any = torch.optim.SGD([parameter()], lr=0.1)
    _, told = watched(optimizer)
    optimizer.step(closure=None)
    optimizer.step(float)
    assert told[0] == "SGD begins"
    assert told[2] == "SGD begins with <class 'float'>"


def test_a_step_with_a_closure_begins_when_the_closure_has_returned() -> None:
    optimizer: Any = torch.optim.SGD([parameter()], lr=0.1)
    _, told = watched(optimizer, awaits_closures=True)

    def closure() -> str:
        told.append("closure")
        return "loss"

    assert optimizer.step(closure) == "loss"
    assert optimizer.step(closure=closure) == "loss"
    optimizer.step()
    assert told == ["closure", "SGD begins", "SGD ends"] * 2 + ["SGD begins", "SGD ends"]


def test_a_closure_that_fails_makes_no_step() -> None:
    optimizer: Any = torch.optim.SGD([parameter()], lr=0.1)
    _, told = watched(optimizer, awaits_closures=True)

    def fails() -> float:
        raise ValueError("no batch")

    with pytest.raises(ValueError, match="no batch"):
        optimizer.step(fails)
    optimizer.step(float)
    assert told == ["SGD begins", "SGD ends"]


def test_other_arguments_and_steps_of_other_classes_are_told_at_once() -> None:
    torch.optim.SGD([parameter()], lr=0.1)
    own: Any = CallsParent([parameter()], lr=0.1)
    _, told = watched(own, awaits_closures=True)
    own.step(float)
    assert told[0] == "CallsParent begins with <class 'float'>"
    several: Any = torch.optim.LBFGS([parameter()], max_iter=2)
    _, told = watched(several, awaits_closures=True)
    several.step(lambda: torch.ones(()))
    assert told[0].startswith("LBFGS begins with <function")


def test_hooks_that_come_within_a_closure_are_told_by_the_caller() -> None:
    optimizer: Any = torch.optim.SGD([parameter()], lr=0.1)
    made: list[tuple[Steps, list[str]]] = []

    def closure() -> None:
        made.append(watched(optimizer, awaits_closures=True))
        made[0][0].closure_has_run(optimizer)
        made[0][0].closure_has_run(optimizer)

    optimizer.step(closure)
    ((_, told),) = made
    assert told == ["SGD begins", "SGD ends"]


def test_hooks_that_are_removed_within_a_closure_are_told_nothing() -> None:
    optimizer: Any = torch.optim.SGD([parameter()], lr=0.1)
    steps, told = watched(optimizer, awaits_closures=True)
    optimizer.step(steps.remove)
    assert told == []


def joint() -> tuple[Joint, dict[str, nn.Parameter]]:
    parameters = {name: parameter() for name in ("first", "second", "nobody's")}
    members = [
        torch.optim.SGD([parameters["first"]], lr=0.1),
        torch.optim.Adam([parameters["second"]], lr=0.2),
    ]
    return Joint(members), parameters


def test_turns_are_over_when_all_have_stepped() -> None:
    optimizer, parameters = joint()
    turns = Turns(optimizer, parameters)
    first, second = optimizer.members
    assert turns.names(first) == ["first", "nobody's"]
    assert turns.names(second) == ["second"]
    turns.take(second)
    second.param_groups[0]["lr"] = 9.0
    assert not turns.are_over
    turns.take(first)
    assert turns.are_over
    assert [one["lr"] for one in turns.options()] == [0.1, 0.2], "those of its turn"
    turns.end()
    turns.refuse_backward()


def test_turns_out_of_turn_are_refused_by_name() -> None:
    optimizer, parameters = joint()
    turns = Turns(optimizer, parameters)
    turns.take(optimizer.members[0])
    with pytest.raises(OperationError, match=r"\(SGD\) steps twice, and another \(Adam\) not at all, since"):
        turns.take(optimizer.members[0])
    with pytest.raises(OperationError, match=r"all optimizers of the model have stepped: one \(Adam\) has not"):
        turns.refuse_backward()


def test_one_optimizer_alone_holds_everything() -> None:
    held = {"only": parameter()}
    optimizer = torch.optim.SGD(held.values(), lr=0.1)
    turns = Turns(optimizer, held)
    assert turns.names(optimizer) is None
    turns.take(optimizer)
    assert turns.are_over
