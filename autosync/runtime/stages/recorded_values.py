"""The Python values of a model when its pass was recorded: stages repeat that pass, with the values of then.

Such values are the attributes of modules that are no tensors, whether a module is in training or evaluation mode, and
the number of hooks. A script that changes one of them between two steps would train on as if it had not.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from autosync.errors import OperationError

_HOOKS = {
    "_forward_hooks": "number of forward hooks",
    "_forward_pre_hooks": "number of forward pre hooks",
    "_backward_hooks": "number of backward hooks",
    "_backward_pre_hooks": "number of backward pre hooks",
}
"""Where torch keeps the hooks of a module, and what is noted of them."""

_PLAIN = (int, float, str)


class RecordedValues:
    """Notes the Python values of all modules of a model, and refuses others later."""

    def __init__(self, model: nn.Module) -> None:
        self._noted = [(path, module, _values(module)) for path, module in model.named_modules()]

    def refuse_changes(self) -> None:
        """Refuse a step if a value has changed since it was noted; the error names it."""
        for path, module, noted in self._noted:
            found = _values(module)
            if found != noted:
                # In lists, a NaN is equal to itself.
                name = next(one for one in {**noted, **found} if [noted.get(one, _NONE)] != [found.get(one, _NONE)])
                raise OperationError(
                    f"{name} of {f'module {path}' if path else 'the model'} is {_told(found, name)}, and was "
                    f"{_told(noted, name)} in the first step: stages repeat the forward pass that they recorded then "
                    "(make the change before the first step; a strategy without stages takes the model as it is)"
                )


_NONE = object()


def _values(module: nn.Module) -> dict[str, Any]:
    attributes = vars(module)
    found = {name: value for name, value in attributes.items() if _is_plain(value)}
    for name, words in _HOOKS.items():
        found[words] = len(attributes.get(name, ()))
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, _PLAIN)


def _told(values: dict[str, Any], name: str) -> str:
    return repr(values[name]) if name in values else "not there"
