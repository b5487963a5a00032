"""The state of a model when its pass was recorded: stages repeat that pass, with the values and the layers of then.

Such state are the attributes of modules, their parameters, buffers and modules, whether a module is in training or
evaluation mode and a parameter is trained, and the number of hooks. A script that changes one of them between two steps
would train on as if it had not. Values of parameters and buffers may change in place: stages compute with them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from autosync.errors import OperationError

_HOOKS = {
    "_forward_hooks": "number of forward hooks",
    "_forward_pre_hooks": "number of forward pre hooks",
    "_backward_hooks": "number of backward hooks",
    "_backward_pre_hooks": "number of backward pre hooks",
}
"""Where torch keeps the hooks of a module, and what is noted of them."""

_OBJECTS = (torch.Tensor, nn.Module)


class StateChange(NamedTuple):
    """A change of a module's state: its name with the module's, what it is now and what it was."""

    what: str
    now: str
    then: str


class RecordedValues:
    """Notes the state of all modules of a model, and refuses another one later.

    `before` was noted before a pass. Tensors that the pass has put into attributes are its own, and are left out: a
    module may keep what it has computed for others to read, and does so again when a script evaluates the model.
    """

    def __init__(self, model: nn.Module, *, before: RecordedValues | None = None) -> None:
        self._model = model
        self._left_out: Mapping[str, list[str]] = {} if before is None else before.kept_by_passes()
        self._noted = self._now()

    def _now(self) -> list[tuple[str, nn.Module, dict[str, Any]]]:
        return [(path, module, self._state(path, module)) for path, module in self._model.named_modules()]

    def _state(self, path: str, module: nn.Module) -> dict[str, Any]:
        found = _state(module)
        for name in self._left_out.get(path, ()):
            found.pop(name, None)
        return found

    def note_again(self) -> None:
        """Note the state as it is now, after a pass that was no step of the script's."""
        self._noted = self._now()

    def kept_by_passes(self) -> Mapping[str, list[str]]:
        """Return the attributes of each module that have got other tensors since the state was noted."""
        return {
            path: [
                name
                for name, value in vars(module).items()
                if isinstance(value, torch.Tensor) and noted.get(name) is not value
            ]
            for path, module, noted in self._noted
        }

    def refuse_changes(self) -> None:
        """Refuse a step if the state has changed since it was noted; the error names the change."""
        for path, module, noted in self._noted:
            if change := _change(path, noted, self._state(path, module)):
                words = f"is {change.now}, and was {change.then} in"
                if change.now == change.then:
                    words = f"is another {change.now.removeprefix('a ')} than in"
                raise OperationError(
                    f"{change.what} {words} the first step: stages repeat the forward pass that they recorded then "
                    "(make the change before the first step; a strategy without stages takes the model as it is)"
                )

    def refuse_own_changes(self) -> None:
        """Refuse a forward pass that itself has changed a plain value, or put another tensor in place of a buffer."""
        for path, module, noted in self._noted:
            if change := _change(path, *_without_kept(module, noted, self._state(path, module))):
                now = "another" if change.now == change.then else change.now
                raise OperationError(
                    f"the forward pass changes {change.what}, which was {change.then} and then {now}: stages would "
                    "repeat the first pass (a strategy without stages takes the model as it is)"
                )


def refuse_replaced(found: Mapping[str, nn.Parameter], trained: Mapping[str, nn.Parameter]) -> None:
    """Refuse a first step in which a model has other parameters than those that the trainer trains."""
    for name, parameter in found.items():
        if parameter is not trained[name]:
            raise OperationError(
                f"{name} is another tensor than when the trainer was made, which trains that one (load values in "
                "place: load_state_dict() without assign=True)"
            )


_PLAIN = frozenset({bool, int, float, str, type(None)})
_CONTAINERS = frozenset({dict, OrderedDict, set, list})
"""Types of most attributes, which are known at once: each step looks at all of them."""
_NONE = object()


def _state(module: nn.Module) -> dict[str, Any]:
    """Return plain values, tensors and modules by name, as they are."""
    found: dict[str, Any] = {}
    attributes = vars(module)
    for name, value in attributes.items():
        kind = type(value)
        if kind in _PLAIN or (kind not in _CONTAINERS and (isinstance(value, _OBJECTS) or _is_plain(value))):
            found[name] = value
    for own in (module._parameters, module._buffers, module._modules):  # noqa: SLF001 - with those that are None
        found.update(own)
    for name, parameter in module._parameters.items():  # noqa: SLF001 - see above
        if parameter is not None:
            found[f"requires_grad of {name}"] = parameter.requires_grad
    for name, words in _HOOKS.items():
        found[words] = len(attributes.get(name, ()))
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float | str)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal. A tensor or module is equal to itself alone."""
    return one is other or (not isinstance(one, _OBJECTS) and not isinstance(other, _OBJECTS) and bool(one == other))


def _without_kept(module: nn.Module, noted: dict[str, Any], found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return both states without tensors that are neither parameters nor buffers: see `RecordedValues`."""
    own = {*module._parameters, *module._buffers, *module._modules}  # noqa: SLF001 - see above
    states = noted, found
    kept = {name for state in states for name, value in state.items() if isinstance(value, _OBJECTS)} - own
    return [{name: value for name, value in state.items() if name not in kept} for state in states]


def _change(path: str, noted: dict[str, Any], found: dict[str, Any]) -> StateChange | None:
    names = noted if noted.keys() == found.keys() else {**noted, **found}
    for name in names:
        pair = noted.get(name, _NONE), found.get(name, _NONE)
        if not _is_same(*pair):
            then, now = map(_words, pair)
            return StateChange(f"{name} of {f'module {path}' if path else 'the model'}", now, then)
    return None


def _words(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "a tensor"
    if isinstance(value, nn.Module):
        return f"a module {type(value).__name__}"
    return "not there" if value is _NONE else repr(value)
