"""Checks what must not change during training: the parameters of the model and of the optimizer."""

from __future__ import annotations

import operator
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.strategy.bundle import Bundle

_GO_ON = "release(model) and parallelize again to go on"


class Expected:
    """Checks in every step whether a script has changed something that a session cannot follow.

    `are_engines`: the engine updates variables, so the optimizer's groups must not change either. A model's parameters
    are looked up where the model keeps them, and an optimizer's groups are compared object by object: torch or Python
    does each of these loops in one call.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, bundle: Bundle, *, are_engines: bool
    ) -> None:
        frozen = {one.name for one in bundle.model.untrained if one.reason == "frozen"}
        self._frozen = {name: one for name, one in model.named_parameters() if name in frozen}
        self._optimizer = optimizer
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._places = _places(model, [variable.name for variable in bundle.model.variables])
        self._groups = self._held() if are_engines else None

    def check(self) -> None:
        """Raise an error if something was changed."""
        for name, parameter in self._frozen.items():
            if parameter.requires_grad:
                raise OperationError(
                    f"{name} is trainable now; in the bundle it is frozen, and no rank synchronises it (tune the model "
                    "as it is now, release it and go on with that bundle)"
                )
        for owned, key, parameter in self._places:
            if owned.get(key) is not parameter:
                raise OperationError(
                    f"the model has another tensor for {self._names[id(parameter)]} than when training began, and the "
                    f"new one is not synchronised ({_GO_ON}; to change values, write into the parameter that is there)"
                )
        if self._groups is not None:
            self._check_groups(self._groups)

    def _check_groups(self, expected: list[list[Any]]) -> None:
        groups = self._optimizer.param_groups
        if len(groups) == len(expected) and all(
            len(group["params"]) == len(held) and all(map(operator.is_, group["params"], held))
            for group, held in zip(groups, expected, strict=True)
        ):
            return
        found = self._held()
        count, before = sum(map(len, found)), sum(map(len, expected))
        if (count, len(found)) != (before, len(expected)):
            raise OperationError(
                f"the optimizer has {count} parameters in {len(found)} groups, and had {before} in {len(expected)} "
                f"when training began, by which the engine updates{self._told(expected, found)} ({_GO_ON})"
            )
        raise OperationError(
            f"the optimizer's groups have other parameters than when training began, by which the engine "
            f"updates{self._told(expected, found)} ({_GO_ON})"
        )

    def _told(self, before: list[list[Any]], now: list[list[Any]]) -> str:
        """Describe the first parameters that were added or removed."""
        then, here = ({id(p): p for group in groups for p in group} for groups in (before, now))
        words = [
            f"{self._names.get(number, f'one of shape {list(parameter.shape)}')} {what}"
            for what, ones, others in (("is new", here, then), ("is gone", then, here))
            for number, parameter in list(ones.items())
            if number not in others
        ]
        return f": {' and '.join(words[:2])}" if words else ": they are in another order"

    def _held(self) -> list[list[Any]]:
        return [list(group["params"]) for group in self._optimizer.param_groups]


def _places(model: torch.nn.Module, names: list[str]) -> list[tuple[dict[str, Any], str, torch.nn.Parameter]]:
    """Return where the model keeps its parameters: the module's mapping, the key, and the current parameter."""
    found = []
    for name in names:
        owner, _, key = name.rpartition(".")
        owned: Any = model.get_submodule(owner)._parameters  # noqa: SLF001 - torch has no other way to look without a search
        # A scripted module keeps its parameters elsewhere, and they cannot be replaced.
        if isinstance(owned, dict) and key in owned:
            found.append((owned, key, owned[key]))
    return found
