"""The facts about the user's optimizer that updates without it need: its class, its groups and their options.

They are sent as plain data to ranks that only serve. Options change during training (learning rates, for example), so
each iteration has its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch

from autosync.errors import OperationError
from autosync.runtime.local.joint_optimizer import kind_of

GroupOptions: TypeAlias = Mapping[str, Any]
"""The options of one group of parameters: learning rate, weight decay and so on."""
KindT = TypeVar("KindT", bound=type[torch.optim.Optimizer])

# Keys of a torch group that are not options.
_NO_OPTIONS = ("params", "param_names")

_KNOWN: dict[str, type[torch.optim.Optimizer]] = {}

# An iteration's updates are done long before this many more have begun, except those that may be late.
_NUM_KEPT_ITERATIONS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """One group of an optimizer: its options, and the names of its parameters."""

    options: GroupOptions
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    """An optimizer of `torch.optim` as data."""

    class_name: str
    groups: tuple[GroupFacts, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        groups = [{"options": _plain(one.options), "names": list(one.names)} for one in self.groups]
        return {"class": self.class_name, "groups": groups}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> OptimizerFacts:
        """Rebuild the facts from the values that `to_json` returns."""
        groups = tuple(
            GroupFacts(options=_from_plain(one["options"]), names=tuple(one["names"])) for one in document["groups"]
        )
        return cls(class_name=document["class"], groups=groups)

    def optimizer_class(self) -> type[torch.optim.Optimizer]:
        """Return the class, looked up by its name, so that received data cannot bring code along."""
        kind: Any = _KNOWN.get(self.class_name) or getattr(torch.optim, self.class_name, None)
        is_optimizer = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
        if not is_optimizer or kind is torch.optim.Optimizer:
            raise OperationError(
                f"torch.optim of torch {torch.__version__} has no optimizer {self.class_name!r} "
                "(what updates without the user's own optimizer must be of a class in torch.optim)"
            )
        found: type[torch.optim.Optimizer] = kind
        return found


def known_optimizer(kind: KindT) -> KindT:
    """Make a class that is not in `torch.optim` known by its name; every rank that needs it must import it."""
    assert not hasattr(torch.optim, kind.__name__), "torch's own go first by their names"
    _KNOWN[kind.__name__] = kind
    return kind


def moves_touched_rows_alone(class_name: str) -> bool:
    """Whether a class that was made known declares that it leaves rows without a gradient as they are."""
    return bool(getattr(_KNOWN.get(class_name), "moves_touched_rows_alone", False))


class StepScale(NamedTuple):
    """The treatment of gradients in one step.

    `inverse` multiplies them, to undo the loss's scale. `is_skipped`: the step changes nothing. `clips`: the script has
    clipped them, as the task declares.
    """

    inverse: float = 1.0
    is_skipped: bool = False
    clips: bool = False


UNSCALED = StepScale()


class Step(NamedTuple):
    """The options (by group) and the scale of one step."""

    groups: tuple[GroupOptions, ...]
    scale: StepScale


class Options:
    """The options of each iteration, by group. One thread notes them, and others read them."""

    def __init__(self) -> None:
        self.num_kept = _NUM_KEPT_ITERATIONS
        self._by_iteration: dict[int, Step] = {}

    def put(self, iteration: int, groups: Sequence[GroupOptions], scale: StepScale = UNSCALED) -> None:
        """Note an iteration's options when `step()` is called, before the engine is told of the call."""
        self._by_iteration[iteration] = Step(tuple(groups), scale)
        self._by_iteration.pop(iteration - self.num_kept, None)

    def of(self, iteration: int) -> Step:
        return self._by_iteration[iteration]


def options_of(optimizer: torch.optim.Optimizer) -> tuple[GroupOptions, ...]:
    """Return a copy of the current options, by group. Later changes by the user do not affect it."""
    return tuple(
        {
            key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in group.items()
            if key not in _NO_OPTIONS
        }
        for group in optimizer.param_groups
    )


def facts_of(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> OptimizerFacts:
    """Return an optimizer as data. `names` are by the `id` of parameters; those without a name are left out."""
    kind = kind_of(optimizer)
    facts = OptimizerFacts(
        class_name=kind.__name__,
        groups=tuple(
            GroupFacts(options=options, names=tuple(names[id(p)] for p in group["params"] if id(p) in names))
            for options, group in zip(options_of(optimizer), optimizer.param_groups, strict=True)
        ),
    )
    if kind not in (_KNOWN.get(kind.__name__), getattr(torch.optim, kind.__name__, None)):
        raise OperationError(
            f"the optimizer is {kind.__module__}.{kind.__qualname__}; a rank that only serves knows the classes of "
            "torch.optim alone (update on workers: synchroniser all_reduce, or parameter_server with update: worker)"
        )
    return facts


def plain_step(step: Step) -> dict[str, Any]:
    """Return a step's options and scale as values that JSON can hold, for ranks that only serve."""
    return {
        "groups": [_plain(group) for group in step.groups],
        "inverse_scale": step.scale.inverse,
        "is_skipped": step.scale.is_skipped,
        "clips": step.scale.clips,
    }


def step_from_plain(document: Mapping[str, Any]) -> Step:
    """Make a step from the values that `plain_step` returns."""
    scale = StepScale(inverse=document["inverse_scale"], is_skipped=document["is_skipped"], clips=document["clips"])
    return Step(tuple(_from_plain(group) for group in document["groups"]), scale)


def _plain(options: GroupOptions) -> dict[str, Any]:
    return {key: _plain_value(key, value) for key, value in options.items()}


def _plain_value(key: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, tuple | list):
        return [_plain_value(key, one) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise OperationError(
        f"the optimizer's option {key} is a {type(value).__name__}, which cannot be sent to a rank that only serves "
        "(numbers, truth values, words and lists of them can)"
    )


def _from_plain(options: Mapping[str, Any]) -> dict[str, Any]:
    # The lists were tuples. torch compares options with its own tuples (betas), and never changes them.
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
