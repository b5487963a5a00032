"""Several optimizers in the place of one, and which others there are."""

import gc
from typing import Any

import pytest
import torch
from torch import nn

from autosync.errors import OperationError
from autosync.runtime.local.joint_optimizer import (
    Joint,
    Strangers,
    joined,
    kind_of,
    members_of,
    owners_of,
    refuse_held_elsewhere,
    refuse_shared,
)


def parameters() -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.zeros(2)) for name in ("first", "second", "third")}


def sgd(*held: nn.Parameter) -> torch.optim.SGD:
    return torch.optim.SGD(held, lr=0.1, momentum=0.9)


def test_one_of_several() -> None:
    found = parameters()
    alone = sgd(*found.values())
    assert joined(alone) is alone
    assert joined([alone]) is alone
    assert members_of(alone) == (alone,)
    pair = sgd(found["first"]), torch.optim.Adam([found["second"]], lr=0.2)
    joint = joined(pair)
    assert isinstance(joint, torch.optim.Optimizer)
    assert members_of(joint) == pair
    assert kind_of(joint) is torch.optim.SGD
    assert [group["lr"] for group in joint.param_groups] == [0.1, 0.2]
    assert owners_of(joint) == {id(found["first"]): pair[0], id(found["second"]): pair[1]}
    assert repr(joint) == "[SGD, Adam]"


def test_hooks_are_of_all_of_them() -> None:
    found = parameters()
    pair = sgd(found["first"]), sgd(found["second"])
    told: list[Any] = []
    joint = Joint(pair)
    hooks = [
        joint.register_step_pre_hook(lambda one, *_: told.append(one)),
        joint.register_step_post_hook(lambda one, *_: told.append(one)),
        joint.register_state_dict_pre_hook(told.append),
        joint.register_load_state_dict_pre_hook(lambda one, _: told.append(one)),
        joint.register_load_state_dict_post_hook(told.append),
    ]
    for one in pair:
        one.step()
        one.load_state_dict(one.state_dict())
    assert told == [pair[0]] * 5 + [pair[1]] * 5
    for hook in hooks:
        hook.remove()
    pair[0].step()
    assert len(told) == 10


def test_each_loads_its_share() -> None:
    found = parameters()
    pair = sgd(found["first"], found["third"]), sgd(found["second"])
    joint = Joint(pair)
    entries = {number: {"momentum_buffer": torch.full((2,), float(number))} for number in range(3)}
    groups = [{**pair[0].state_dict()["param_groups"][0], "params": [0, 1], "lr": 0.5}]
    groups.append({**pair[1].state_dict()["param_groups"][0], "params": [2], "lr": 0.6})
    joint.load_state_dict({"state": entries, "param_groups": groups})
    assert [group["lr"] for group in joint.param_groups] == [0.5, 0.6]
    assert [float(joint.state[found[name]]["momentum_buffer"][0]) for name in ("first", "third", "second")] == [0, 1, 2]


class Wrapper:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


class Delegate(torch.optim.Optimizer):
    """An optimizer by name, that has not been built as one."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


def test_what_is_no_optimizer_is_refused_by_name() -> None:
    made: Any = sgd(*parameters().values())
    for given, words in {
        (): "an empty list of optimizers",
        (made, made): "the same optimizer twice",
        (Wrapper(made),): r"given .*\.Wrapper for an optimizer",
        (Delegate(made),): r"given .*\.Delegate, which is not built as torch's optimizers are",
    }.items():
        with pytest.raises(OperationError, match=words):
            joined(given)
    with pytest.raises(OperationError, match=r"given .*\.Wrapper for an optimizer"):
        joined(Wrapper(made))  # type: ignore[arg-type]


def test_what_two_hold_is_refused_by_name() -> None:
    found = parameters()
    joint = Joint([sgd(found["first"], found["second"]), sgd(found["second"])])
    with pytest.raises(OperationError, match="second is in two of the optimizers"):
        refuse_shared(joint, found)
    refuse_shared(joint, {"first": found["first"]})


def test_what_another_holds_is_refused_by_name() -> None:
    found = parameters()
    given = sgd(found["first"])
    refuse_held_elsewhere(given, found)
    other = torch.optim.Adam([found["third"]])
    with pytest.raises(
        OperationError, match=r"third is in no optimizer that parallelize was given, and in another one .Adam"
    ):
        refuse_held_elsewhere(given, found)
    refuse_held_elsewhere(Joint([given, other]), found)
    refuse_held_elsewhere(given, {"first": found["first"]})


def test_what_was_thrown_away_holds_nothing() -> None:
    found = parameters()
    given = sgd(found["first"])
    other: Any = sgd(found["second"])
    other.itself = other
    gc.disable()
    try:
        del other
        refuse_held_elsewhere(given, found)
    finally:
        gc.enable()


def test_strangers_do_not_step() -> None:
    found = parameters()
    given, elsewhere = sgd(found["first"]), sgd(nn.Parameter(torch.zeros(1)))
    strangers = Strangers(given, {"first": found["first"]})
    late = torch.optim.Adam([found["first"]])
    try:
        given.step()
        elsewhere.step()
        with pytest.raises(OperationError, match=r"that parallelize was not given \(Adam\) steps, and holds first"):
            late.step()
    finally:
        strangers.remove()
    late.step()
