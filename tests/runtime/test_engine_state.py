"""`optimizer.state` where the engine updates: what is away is never taken for what is there."""

import copy
import pickle
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from autosync.errors import OperationError
from autosync.runtime.local.joint_optimizer import Joint
from autosync.runtime.local.optimizer_state import Entries, GuardedState, Keeper, entry_of

SHARED, APART = "shared", "apart"


class Engine:
    """What an engine does with the states that it keeps: here they are numbers. Everything it is told is noted."""

    def __init__(self, *, serves: bool = False) -> None:
        self.parameters = {name: nn.Parameter(torch.zeros(2)) for name in (SHARED, APART)}
        self.users = nn.Parameter(torch.zeros(1))
        self.optimizer = torch.optim.SGD([*self.parameters.values(), self.users], lr=0.1)
        self.entries = Entries(self.optimizer)
        self.pieces: dict[str, float] = {}
        self.told: list[str] = []
        self.keeper = Keeper(
            self.optimizer,
            self.entries,
            self.parameters,
            apart={APART},
            drain=lambda: self.told.append("drain"),
            reload=self.reload,
            bring=self.bring,
            drop=self.drop,
            serve=(lambda: self.told.append("serve")) if serves else None,
        )

    def reload(self, names: Collection[str]) -> None:
        for name in names:
            entry = self.entries.get(self.parameters[name])
            self.pieces[name] = float(entry["value"][0]) if entry else 0.0

    def bring(self) -> None:
        self.put(SHARED)

    def put(self, name: str) -> None:
        self.entries.put(self.parameters[name], {"value": torch.full((2,), self.pieces[name])})

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            self.entries.drop(self.parameters[name])

    def step(self) -> None:
        self.keeper.backward_begins()
        self.keeper.step_begins()
        for name in self.pieces:
            self.pieces[name] += 1.0

    def consolidate(self, *, alone: bool = False) -> None:
        self.keeper.settle()
        for name in self.parameters:
            self.put(name)
        self.keeper.came_home(alone=alone)

    @property
    def state(self) -> Any:
        return self.optimizer.state


def stepped(*, serves: bool = False) -> Engine:
    engine = Engine(serves=serves)
    engine.step()
    engine.step()
    assert engine.pieces == {SHARED: 2.0, APART: 2.0}
    return engine


LOOKS: dict[str, Callable[[Any, Any], Any]] = {
    "[]": lambda state, key: state[key],
    "[] =": lambda state, key: state.__setitem__(key, {}),
    "del": lambda state, key: state.__delitem__(key),
    "in": lambda state, key: key in state,
    "get": lambda state, key: state.get(key),
    "pop": lambda state, key: state.pop(key, None),
    "setdefault": lambda state, key: state.setdefault(key, {}),
    "len": lambda state, _: len(state),
    "bool": lambda state, _: bool(state),
    "iter": lambda state, _: list(state),
    "keys": lambda state, _: state.keys(),
    "values": lambda state, _: state.values(),
    "items": lambda state, _: state.items(),
    "popitem": lambda state, _: state.popitem(),
    "update": lambda state, _: state.update({}),
    "|": lambda state, _: state | {},
    "| from the right": lambda state, _: {} | state,
    "|=": lambda state, _: state.__ior__({}),
    "==": lambda state, _: state == {},
    "dict": lambda state, _: dict(state),
    "copy": lambda state, _: copy.copy(state),
    "deepcopy": lambda state, _: copy.deepcopy(state),
    "pickle": lambda state, _: pickle.dumps(state),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
def test_a_look_at_what_is_elsewhere_is_refused(look: Callable[[Any, Any], Any]) -> None:
    engine = stepped()
    with pytest.raises(OperationError, match=r"the optimizer's state of apart is where it is updated.*consolidate"):
        look(engine.state, engine.parameters[APART])
    assert engine.pieces[APART] == 2.0


def test_a_look_brings_home_what_is_here() -> None:
    engine = stepped()
    assert engine.state[engine.parameters[SHARED]]["value"].tolist() == [2.0, 2.0]
    engine.state[engine.parameters[SHARED]]["value"].fill_(10.0)
    engine.step()
    assert engine.pieces == {SHARED: 11.0, APART: 3.0}
    assert entry_of(engine.optimizer, engine.parameters[SHARED]) is None, "it is away again"


def test_what_the_user_updates_is_always_there() -> None:
    engine = stepped()
    engine.told.clear()
    engine.state[engine.users]["own"] = 1
    assert engine.state[engine.users] == {"own": 1}
    assert engine.told == []


def test_all_of_it_may_be_thrown_away() -> None:
    engine = stepped()
    engine.state.clear()
    assert len(engine.state) == 0, "it is home, and empty"
    engine.step()
    assert engine.pieces == {SHARED: 1.0, APART: 1.0}


def test_another_mapping_is_followed() -> None:
    engine = stepped()
    engine.optimizer.state = defaultdict(dict, {engine.parameters[APART]: {"value": torch.full((2,), 5.0)}})
    engine.step()
    assert engine.pieces == {SHARED: 1.0, APART: 6.0}
    assert isinstance(engine.state, GuardedState)


def test_what_came_home_may_be_changed() -> None:
    engine = stepped()
    engine.consolidate()
    for entry in engine.state.values():
        entry["value"].mul_(10.0)
    engine.keeper.settle()
    assert engine.pieces == {SHARED: 20.0, APART: 20.0}
    engine.step()
    assert engine.pieces == {SHARED: 21.0, APART: 21.0}


def test_what_came_to_one_alone_may_be_read() -> None:
    engine = stepped()
    engine.consolidate(alone=True)
    assert len(engine.state) == 2
    engine.step()
    engine.consolidate(alone=True)
    engine.state[engine.parameters[APART]]["value"].mul_(2.0)
    with pytest.raises(OperationError, match=r"the optimizer's state of apart was changed after .*consolidate\(model"):
        engine.step()


def test_servers_hear_of_it_before_gradients() -> None:
    engine = stepped(serves=True)
    engine.told.clear()
    engine.step()
    assert engine.told == [], "nothing was changed"
    engine.state.clear()
    engine.step()
    assert engine.told.count("serve") == 1
    engine.keeper.backward_begins()
    engine.state.clear()
    with pytest.raises(OperationError, match=r"cleared or replaced between backward and optimizer\.step"):
        engine.keeper.step_begins()


def test_the_end_leaves_a_state_like_any_other() -> None:
    engine = stepped()
    engine.keeper.end()
    assert type(engine.state) is defaultdict
    assert engine.state[engine.parameters[SHARED]]["value"].tolist() == [2.0, 2.0]
    assert engine.state[engine.users] == {}


def test_copies_are_what_torch_has() -> None:
    engine = Engine()
    for copied in (copy.copy(engine.state), copy.deepcopy(engine.state), pickle.loads(pickle.dumps(engine.state))):
        assert type(copied) is defaultdict
        assert copied["anything"] == {}


def test_entries_of_several_optimizers() -> None:
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    joint = Joint([torch.optim.SGD([one], lr=0.1) for one in (first, second)])
    entries = Entries(joint)
    entries.put(second, {"value": 1})
    assert joint.members[1].state == {second: {"value": 1}}
    assert entry_of(joint, second) == {"value": 1}
    before = entries.follow()
    joint.members[0].state = defaultdict(dict, {first: {"value": 2}})
    assert entries.follow() != before
    assert entries.get(first) == {"value": 2}
    entries.drop(second)
    assert entries.get(second) is None
