"""Tells when an optimizer's step begins and ends, for which torch's hooks alone are not enough.

torch puts its hooks around the `step` of each class. If the `step` of a class calls that of its parent, and an
optimizer of the parent's class was ever made in the process, the hooks run twice, one call within the other. And a step
that raises an error runs no hooks at its end.

A step may be given a closure, which makes the passes. The steps of torch's own classes call it before they look at
gradients and state. So for these, a step with a closure is taken to begin when its closure has returned.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.runtime.local.joint_optimizer import members_of, owners_of
from autosync.runtime.local.optimizer_facts import GroupOptions, options_of

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional arguments of a step, of which the first is the optimizer, and those with names."""

Begins = Callable[[torch.optim.Optimizer, tuple[Any, ...]], None]
Ends = Callable[[torch.optim.Optimizer], None]

# torch's wrapper around each class's step; all of these wrappers run the same code.
_AROUND_STEP = torch.optim.Optimizer.profile_hook_step(lambda _: None).__code__


class Steps:
    """Calls `begins` and `ends` once for each step of any of the optimizers.

    `begins` gets the optimizer and those arguments of its step that are not None, except a closure that has returned.
    With `awaits_closures`, it is called after such a closure where the class of the optimizer allows it.
    """

    def __init__(
        self,
        optimizers: Iterable[torch.optim.Optimizer],
        *,
        begins: Begins,
        ends: Ends,
        awaits_closures: bool = False,
    ) -> None:
        self._begins = begins
        self._ends = ends
        self._awaits_closures = awaits_closures
        self._depths: dict[int, int] = {}
        self._hooks: list[Any] = []
        for optimizer in optimizers:
            self._depths[id(optimizer)] = 0
            self._hooks.append(_LastPreHook(optimizer, self._enter))
            leave = optimizer.register_step_post_hook(self._leave)
            # Move this hook to the front, so that the script's own hooks see updated parameters.
            optimizer._optimizer_step_post_hooks.move_to_end(leave.id, last=False)  # type: ignore[attr-defined] # noqa: SLF001 - torch has no `prepend` for these
            self._hooks.append(leave)

    def remove(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def closure_has_run(self, optimizer: torch.optim.Optimizer) -> None:
        """Begin the step of an optimizer whose closure has returned, if these hooks were made within the closure."""
        if self._depths.get(id(optimizer)) == 0:
            self._depths[id(optimizer)] = 1
            self._begins(optimizer, ())

    def _enter(
        self, optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Arguments | None:
        depth = self._depths[id(optimizer)]
        if depth and num_under_way(optimizer) <= 1:
            # An earlier step has failed, and ran no hook at its end.
            depth = 0
        self._depths[id(optimizer)] = depth + 1
        if depth:
            return None
        if self._awaits_closures:
            changed = after_closure(optimizer, arguments, options, lambda: self._begin_if_there(optimizer))
            if changed is not None:
                return changed
        self._begins(optimizer, given_to(arguments, options))
        return None

    def _begin_if_there(self, optimizer: torch.optim.Optimizer) -> None:
        # Within the closure, another strategy may have taken the place of this one.
        if self._hooks:
            self._begins(optimizer, ())

    def _leave(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._depths[id(optimizer)] -= 1
        if not self._depths[id(optimizer)]:
            self._ends(optimizer)


class _LastPreHook:
    """A hook before an optimizer's step that runs after all other hooks of the optimizer, even those registered later.

    The script's own hooks then find the gradients as they are: finished, or sealed.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, hook: Callable[..., Arguments | None]) -> None:
        self._optimizer = optimizer
        self._handle = optimizer.register_step_pre_hook(hook)
        register = optimizer.register_step_pre_hook

        def register_before(hook: Callable[..., Any]) -> Any:
            added = register(hook)
            hooks: Any = optimizer._optimizer_step_pre_hooks  # noqa: SLF001 - torch has no `last` for these
            hooks.move_to_end(self._handle.id)
            return added

        self._attributes: dict[str, Any] = vars(optimizer)
        self._attributes["register_step_pre_hook"] = register_before

    def remove(self) -> None:
        """Remove the hook."""
        self._handle.remove()
        self._attributes.pop("register_step_pre_hook", None)


def given_to(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of a step, besides the optimizer, that are not None."""
    return tuple(one for one in (*arguments[1:], *options.values()) if one is not None)


def calls_closures_first(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer's step is torch's own, and calls a closure once, before it looks at gradients and state."""
    return type(optimizer).step.__module__.startswith("torch.optim.") and not isinstance(optimizer, torch.optim.LBFGS)


def after_closure(
    optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], options: dict[str, Any], then: Callable[[], None]
) -> Arguments | None:
    """Return the arguments of a step, with a closure that calls `then` at its end in the place of the given one.

    None if no closure is given, or if the step may use it in another way than torch's own classes do.
    """
    given = given_to(arguments, options)
    if len(given) != 1 or not callable(given[0]) or not calls_closures_first(optimizer):
        return None
    (closure,) = given

    def followed() -> Any:
        loss = closure()
        then()
        return loss

    return (optimizer, followed), {}


def num_under_way(optimizer: torch.optim.Optimizer) -> int:
    """Return how many steps of an optimizer are running in this thread, one within the other."""
    count = 0
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to look at the calls under way
    while frame is not None:
        if frame.f_code is _AROUND_STEP and frame.f_locals.get("self") is optimizer:
            count += 1
        frame = frame.f_back
    return count


class Turns:
    """Tracks which of a model's optimizers have stepped since the gradients came. The engine steps when all have.

    `parameters` are the engine's variables by name.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._members = members_of(optimizer)
        owners = owners_of(optimizer)
        self._held: dict[int, list[str]] = {id(member): [] for member in self._members}
        for name, parameter in parameters.items():
            # Parameters that no optimizer holds go with the first optimizer.
            self._held[id(owners.get(id(parameter), self._members[0]))].append(name)
        self._options: dict[int, tuple[GroupOptions, ...]] = {}

    def take(self, member: torch.optim.Optimizer) -> None:
        """Note that an optimizer steps, with its current options."""
        if id(member) in self._options and not self.are_over:
            missing = next(one for one in self._members if id(one) not in self._options)
            raise OperationError(
                f"an optimizer ({type(member).__name__}) steps twice, and another ({type(missing).__name__}) not at "
                "all, since the last backward pass: the engine updates when all optimizers of the model have stepped "
                "(strategies in which the user's optimizers update, as preset ddp, know no such rule)"
            )
        self._options[id(member)] = options_of(member)

    @property
    def are_under_way(self) -> bool:
        """Whether some of the optimizers have stepped, but not all."""
        return bool(self._options) and not self.are_over

    @property
    def are_over(self) -> bool:
        """Whether all optimizers have stepped."""
        return len(self._options) == len(self._members)

    def names(self, member: torch.optim.Optimizer) -> list[str] | None:
        """Return the engine's variables that an optimizer holds; None (for all) if it is the only optimizer."""
        return None if len(self._members) == 1 else self._held[id(member)]

    def options(self) -> tuple[GroupOptions, ...]:
        """Return the options of all groups as they were at each optimizer's step. All optimizers must have stepped."""
        return tuple(one for member in self._members for one in self._options[id(member)])

    def end(self) -> None:
        """Begin again: no optimizer has stepped."""
        self._options.clear()

    def refuse_backward(self) -> None:
        """Refuse the gradients of a backward pass if some optimizers have stepped and others have not."""
        if self._options and not self.are_over:
            missing = next(one for one in self._members if id(one) not in self._options)
            raise OperationError(
                f"a backward pass before all optimizers of the model have stepped: one ({type(missing).__name__}) has "
                "not, and the engine updates when all have (strategies in which the user's optimizers update, as "
                "preset ddp, know no such rule)"
            )
