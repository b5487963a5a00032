"""The values that servers have of parameters, with which the first worker finds what the script changes.

A script can change a parameter in many ways, and torch neither reports nor counts all of them: not what writes to
`p.data`, and not what compiled code does. So the values themselves are compared with a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from autosync.runtime.memory.same_bits import have_same_bits


class KnownParameters:
    """Knows what values servers have of some parameters, by name. At first these are the present ones."""

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        self._parameters = parameters
        self._values: dict[str, torch.Tensor] = {}
        # Those that have not changed at the servers since their values were noted, in the order of `parameters`.
        self._are_current = dict.fromkeys(parameters, False)
        self.note(parameters)

    def note(self, names: Iterable[str]) -> None:
        """Note that the servers have the present values of these parameters; others than the known ones are ignored."""
        for name in names:
            parameter = self._parameters.get(name)
            if parameter is None:
                continue
            value, known = parameter.detach(), self._values.get(name)
            if known is None or known.shape != value.shape or known.dtype != value.dtype:
                self._values[name] = value.clone()
            else:
                known.copy_(value)
            self._are_current[name] = True

    def forget(self) -> None:
        """Note that the servers change all parameters now. Each is known again when it is noted."""
        self._are_current = dict.fromkeys(self._are_current, False)

    def changed(self) -> list[str]:
        """Return the parameters whose values differ from those that the servers have."""
        return [
            name
            for name, is_current in self._are_current.items()
            if is_current and not have_same_bits(self._parameters[name].detach(), self._values[name])
        ]
