"""Makes several optimizers of one model act as one, and finds which optimizer holds which parameter.

A script may give some parameters to one optimizer and some to another. DDP allows this, and synchronisation does not
depend on which optimizer updates a variable. But where the engine updates, it must know all optimizers: it would move a
parameter that none of them holds, and never update it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from autosync.errors import OperationError

Given = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]


class Joint(torch.optim.Optimizer):
    """Several optimizers as one object. Each of them steps by itself; this object is never stepped."""

    def __init__(self, members: Sequence[torch.optim.Optimizer]) -> None:
        # This object has no groups and no hooks of its own, so torch's constructor is not called.
        self.members = tuple(members)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all members."""
        return [group for member in self.members for group in member.param_groups]

    @property
    def state(self) -> Mapping[torch.Tensor, Any]:  # type: ignore[override]
        """The states of all members, for reading only."""
        return {parameter: entry for member in self.members for parameter, entry in member.state.items()}

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> _Hooks:  # type: ignore[override]
        return _Hooks(member.register_step_pre_hook(hook) for member in self.members)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> _Hooks:  # type: ignore[override]
        return _Hooks(member.register_step_post_hook(hook) for member in self.members)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> _Hooks:  # type: ignore[override] # noqa: FBT001, FBT002 - torch's own form
        return _Hooks(member.register_state_dict_pre_hook(hook, prepend) for member in self.members)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> _Hooks:  # type: ignore[override] # noqa: FBT001, FBT002 - torch's own form
        return _Hooks(member.register_load_state_dict_pre_hook(hook, prepend) for member in self.members)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> _Hooks:  # type: ignore[override] # noqa: FBT001, FBT002 - torch's own form
        return _Hooks(member.register_load_state_dict_post_hook(hook, prepend) for member in self.members)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give each member its share; parameters are numbered through all members."""
        groups = iter(state_dict["param_groups"])
        for member in self.members:
            mine = [next(groups) for _ in member.param_groups]
            numbers = {number for group in mine for number in group["params"]}
            state = {number: entry for number, entry in state_dict["state"].items() if number in numbers}
            member.load_state_dict({"state": state, "param_groups": mine})

    def __repr__(self) -> str:
        return f"[{', '.join(type(member).__name__ for member in self.members)}]"


class _Hooks:
    """Hooks of several optimizers, which are removed together."""

    def __init__(self, hooks: Iterable[Any]) -> None:
        self._hooks = list(hooks)

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def joined(given: Given) -> torch.optim.Optimizer:
    """Return one optimizer for the argument of `parallelize`, which may be several. Refuse other objects."""
    members = [given] if isinstance(given, torch.optim.Optimizer) or not isinstance(given, Sequence) else list(given)
    if not members:
        raise OperationError("parallelize was given an empty list of optimizers")
    for member in members:
        _refuse_other_things(member)
    if len({id(member) for member in members}) < len(members):
        raise OperationError("parallelize was given the same optimizer twice")
    return members[0] if len(members) == 1 else Joint(members)


def _refuse_other_things(given: Any) -> None:
    kind = f"{type(given).__module__}.{type(given).__qualname__}"
    if not isinstance(given, torch.optim.Optimizer):
        raise OperationError(
            f"parallelize was given {kind} for an optimizer (a torch.optim.Optimizer, or a list of them; of an "
            "object that wraps one, give the optimizer that it wraps)"
        )
    if "_optimizer_step_pre_hooks" not in vars(given):
        raise OperationError(
            f"parallelize was given {kind}, which is not built as torch's optimizers are: it runs no hooks when it "
            "steps (of an object that wraps an optimizer, give the optimizer that it wraps)"
        )


def members_of(optimizer: torch.optim.Optimizer) -> tuple[torch.optim.Optimizer, ...]:
    """Return the members of a `Joint`, or the optimizer itself."""
    return optimizer.members if isinstance(optimizer, Joint) else (optimizer,)


def kind_of(optimizer: torch.optim.Optimizer) -> type[torch.optim.Optimizer]:
    """Return the class of an optimizer; for a `Joint`, that of its first member. All share one where it matters."""
    return type(members_of(optimizer)[0])


def owners_of(optimizer: torch.optim.Optimizer) -> dict[int, torch.optim.Optimizer]:
    """Return the optimizer that holds each parameter, by the parameter's `id`."""
    return {
        id(parameter): member
        for member in members_of(optimizer)
        for group in member.param_groups
        for parameter in group["params"]
    }


def refuse_shared(optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Refuse parameters that two optimizers hold, because both would update them. Called if the engine updates."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    seen: set[int] = set()
    for group in optimizer.param_groups:
        for number in map(id, group["params"]):
            if number in seen and number in names:
                raise OperationError(
                    f"{names[number]} is in two of the optimizers: the engine, which updates it under this bundle, "
                    "would not know whose turn it is (each parameter belongs in one)"
                )
            seen.add(number)


def refuse_held_elsewhere(optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Refuse parameters that no given optimizer holds, but another one in the process. Called if the engine updates.

    A parameter that no optimizer holds is synchronised and stays as it is, as under DDP.
    """
    held = owners_of(optimizer)
    names = {id(parameter): name for name, parameter in parameters.items() if id(parameter) not in held}
    if not names or _holder(names, optimizer) is None:
        return
    # An optimizer that was thrown away may still be in memory.
    gc.collect()
    found = _holder(names, optimizer)
    if found is not None:
        name, holder = found
        raise OperationError(
            f"{name} is in no optimizer that parallelize was given, and in another one ({type(holder).__name__}): "
            f"the engine updates {name} under this bundle, and would leave it as it is (give all of them as a list: "
            "parallelize(model, [first, second], …))"
        )


def _holder(names: Mapping[int, str], optimizer: torch.optim.Optimizer) -> tuple[str, torch.optim.Optimizer] | None:
    given = {id(member) for member in members_of(optimizer)}
    for one in gc.get_objects():
        # Objects can lie about `__class__`; `type` shows their real class.
        if issubclass(type(one), torch.optim.Optimizer) and id(one) not in given and type(one) is not Joint:
            for parameter in _parameters(one):
                if id(parameter) in names:
                    return names[id(parameter)], one
    return None


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    for group in vars(optimizer).get("param_groups", ()):
        yield from group["params"]


class Strangers:
    """Refuses the step of any optimizer not given to `parallelize` that holds a parameter the engine updates."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._given = weakref.WeakSet(members_of(optimizer))
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    def remove(self) -> None:
        """Allow other optimizers to step again."""
        self._hook.remove()

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if optimizer in self._given:
            return
        for parameter in _parameters(optimizer):
            name = self._names.get(id(parameter))
            if name is not None:
                raise OperationError(
                    f"an optimizer that parallelize was not given ({type(optimizer).__name__}) steps, and holds "
                    f"{name}, which the engine updates under this bundle (release(model), and give all optimizers as a "
                    "list: parallelize(model, [first, second], …))"
                )
