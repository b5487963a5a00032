"""Finds out by a trial on small copies whether an optimizer updates each variable, and each element, separately.

The engine updates variables piece by piece, with optimizers of the user's class that it makes from the groups and their
options. That is right only if an update depends on nothing else: no number that all variables share (the step size of
D-Adaptation, a global norm), no change of the options, no random numbers, no attributes outside the groups. A class
does not declare this. So the trial makes some steps with all variables together, with each alone and with halves of
each, with the same random gradients, and compares the results.

The trial touches none of the user's tensors. Copies are small; they have the options and attributes of the originals
but different values. An operation that would reach the memory of the originals is stopped before it runs.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

_NUM_VARIABLES = 12
_MAX_SIDE = 4
# Gradients of several sizes reveal clipping and warm-up.
_SCALES = (1.0, 100.0, 0.01, 1.0)
_TOLERANCE = 1e-9
# Attributes that torch, its schedulers and its scaler add to optimizers, and one that our sessions add.
_TORCHS_OWN = frozenset(
    {
        "_need_device_dtype_check_for_fused",
        "_opt_called",
        "_optimizer_load_state_dict_post_hooks",
        "_optimizer_load_state_dict_pre_hooks",
        "_optimizer_state_dict_post_hooks",
        "_optimizer_state_dict_pre_hooks",
        "_optimizer_step_post_hooks",
        "_optimizer_step_pre_hooks",
        "_step_count",
        "_step_supports_amp_scaling",
        "_warned_capturable_if_run_uncaptured",
        "_zero_grad_profile_name",
        "defaults",
        "found_inf",
        "grad_scale",
        "param_groups",
        "register_step_pre_hook",
        "state",
    }
)
_NO_OPTIONS = ("params", "param_names")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerTrial:
    """The result of a trial; `reason` says why variables or elements depend on others, or why no trial was possible.

    `was_tried`: whether steps on copies were made.
    """

    per_variable: bool
    elementwise: bool
    reason: str = ""
    was_tried: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """A small copy of a variable: its group, first values and attributes, and its gradient in each step."""

    group: int
    value: torch.Tensor
    gradients: tuple[torch.Tensor, ...]
    marks: Mapping[str, Any]

    def halves(self) -> Iterator[_Sample]:
        """Yield the sample as two flat pieces."""
        middle = max(self.value.numel() // 2, 1)
        for piece in (slice(0, middle), slice(middle, None)):
            value = self.value.reshape(-1)[piece]
            gradients = tuple(one.reshape(-1)[piece] for one in self.gradients)
            if value.numel():
                yield _Sample(group=self.group, value=value, gradients=gradients, marks=self.marks)


class _StepError(Exception):
    """The update depends on something else than the groups; the message names it."""


def try_out(optimizer: torch.optim.Optimizer, others: Iterable[torch.Tensor] = ()) -> OptimizerTrial:
    """Try an optimizer's class with the options of its groups. The trial must not touch `others` (model tensors)."""
    before = random.getstate()
    fence = _Fence([*others, *_tensors_of(optimizer)])
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            return _try_out(optimizer, fence)
    except _StepError as error:
        return OptimizerTrial(per_variable=False, elementwise=False, reason=str(error))
    except Exception as error:  # noqa: BLE001 - it is the user's code, and may fail in any way
        told = str(error).partition("\n")[0]
        reason = f"it cannot be tried on small copies ({type(error).__name__}: {told})"
        return OptimizerTrial(per_variable=False, elementwise=False, reason=reason, was_tried=False)
    finally:
        random.setstate(before)


def _try_out(optimizer: torch.optim.Optimizer, fence: _Fence) -> OptimizerTrial:
    generator = torch.Generator().manual_seed(1)
    samples = _samples(optimizer, generator)
    _refuse_attributes(optimizer, samples)

    def run(of: Sequence[_Sample]) -> list[torch.Tensor]:
        with fence:
            return _steps(optimizer, of)

    with fence:
        _refuse_without_gradients(optimizer, samples)
    together = run(samples)
    for sample, expected in zip(samples, together, strict=True):
        if not _is_near(run([sample])[0], expected):
            return OptimizerTrial(
                per_variable=False,
                elementwise=False,
                reason="the update of a variable depends on the others that are updated with it",
            )
    try:
        is_elementwise = all(
            _is_near(torch.cat([run([half])[0] for half in sample.halves()]), expected.reshape(-1))
            for sample, expected in zip(samples, together, strict=True)
        )
    except Exception:  # noqa: BLE001 - an optimizer that takes no pieces may fail in any way
        is_elementwise = False
    reason = "" if is_elementwise else "the update of an element depends on other elements of its variable"
    return OptimizerTrial(per_variable=True, elementwise=is_elementwise, reason=reason)


def _samples(optimizer: torch.optim.Optimizer, generator: torch.Generator) -> list[_Sample]:
    """Return copies of some variables of each group: one for each number of axes and each set of attributes."""
    chosen: list[tuple[int, torch.Tensor]] = []
    seen: set[Any] = set()
    for group, options in enumerate(optimizer.param_groups):
        for parameter in options["params"]:
            key = (group, parameter.dim(), tuple(sorted(vars(parameter))))
            if parameter.numel() and key not in seen:
                seen.add(key)
                chosen.append((group, parameter))
    # Steps with sparse gradients are slow.
    chosen = chosen[: 2 if _takes_rows_alone(optimizer) else _NUM_VARIABLES]
    if len(chosen) == 1:
        # Two variables are needed to see whether one depends on the other.
        chosen *= 2
    return [_sample(group, parameter, generator) for group, parameter in chosen]


def _sample(group: int, parameter: torch.Tensor, generator: torch.Generator) -> _Sample:
    shape = [min(size, _MAX_SIDE) for size in parameter.shape]
    dtype = torch.complex128 if parameter.is_complex() else torch.float64

    def draw(scale: float) -> torch.Tensor:
        return scale * torch.randn(shape, generator=generator, dtype=dtype)

    return _Sample(
        group=group,
        value=draw(1.0),
        gradients=tuple(draw(scale) for scale in _SCALES),
        marks=dict(vars(parameter)),
    )


def _steps(optimizer: torch.optim.Optimizer, samples: Sequence[_Sample]) -> list[torch.Tensor]:
    """Return the results of some steps by an optimizer that is made from the groups of variables alone."""
    values = [nn.Parameter(sample.value.clone()) for sample in samples]
    for value, sample in zip(values, samples, strict=True):
        vars(value).update(sample.marks)
    made = remade(optimizer, _grouped(optimizer, samples, values))
    for number in range(len(_SCALES)):
        for value, sample in zip(values, samples, strict=True):
            gradient = sample.gradients[number]
            value.grad = gradient.to_sparse(1) if _takes_rows_alone(optimizer) else gradient.clone()
        options = [_options(group) for group in made.param_groups]
        states = torch.get_rng_state(), random.getstate()
        made.step()
        if not torch.equal(states[0], torch.get_rng_state()) or states[1] != random.getstate():
            raise _StepError("its step draws random numbers")
        for before, group in zip(options, made.param_groups, strict=True):
            changed = [key for key, value in _options(group).items() if not _is_same(value, before.get(key))]
            if changed:
                raise _StepError(f"its step changes the option {changed[0]} of its groups")
    return [value.detach() for value in values]


def _refuse_without_gradients(optimizer: torch.optim.Optimizer, samples: Sequence[_Sample]) -> None:
    """Raise _StepError if a step without gradients changes anything.

    While the engine updates, the user's own optimizer still steps and finds no gradients, and it must do nothing.
    """
    values = [nn.Parameter(sample.value.clone()) for sample in samples]
    for value, sample in zip(values, samples, strict=True):
        vars(value).update(sample.marks)
    made = remade(optimizer, _grouped(optimizer, samples, values))
    try:
        made.step()
    except _StepError:
        raise
    except Exception as error:
        raise _StepError("its step needs a gradient of every variable") from error
    if not all(torch.equal(value, sample.value) for value, sample in zip(values, samples, strict=True)):
        raise _StepError("its step changes variables that have no gradient")


def _takes_rows_alone(optimizer: torch.optim.Optimizer) -> bool:
    return isinstance(optimizer, torch.optim.SparseAdam)


def _grouped(
    optimizer: torch.optim.Optimizer, samples: Sequence[_Sample], values: Sequence[nn.Parameter]
) -> list[dict[str, Any]]:
    members: dict[int, list[nn.Parameter]] = {}
    for sample, value in zip(samples, values, strict=True):
        members.setdefault(sample.group, []).append(value)
    groups = []
    for number, parameters in members.items():
        options = _options(optimizer.param_groups[number])
        # CUDA graphs need a GPU, and copies are on the CPU.
        options |= {"capturable": False} if "capturable" in options else {}
        groups.append({**options, "params": parameters})
    return groups


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else copy.deepcopy(value)
        for key, value in group.items()
        if key not in _NO_OPTIONS
    }


def remade(optimizer: torch.optim.Optimizer, groups: Sequence[Mapping[str, Any]]) -> torch.optim.Optimizer:
    """Return a new optimizer of the same class, made from groups, with the same defaults."""
    kind: Any = type(optimizer)
    made: torch.optim.Optimizer = kind([dict(group) for group in groups])
    made.defaults.update(copy.deepcopy(optimizer.defaults))
    return made


def _refuse_attributes(optimizer: torch.optim.Optimizer, samples: Sequence[_Sample]) -> None:
    """Raise _StepError for attributes outside the groups: an optimizer made from the groups would lack them."""
    step = vars(optimizer).get("step")
    if step is not None and not hasattr(step, "_wrapped_by_lr_sched"):
        raise _StepError("the script has replaced its step")
    values = [nn.Parameter(sample.value.clone()) for sample in samples]
    made = vars(remade(optimizer, _grouped(optimizer, samples, values)))
    for name, value in vars(optimizer).items():
        if name not in _TORCHS_OWN and name != "step" and not (name in made and _is_same(value, made[name])):
            raise _StepError(f"it has an attribute {name} that its groups do not tell")


def _is_same(value: Any, other: Any) -> bool:
    """Whether two values are equal; values that are not plain must be the same object."""
    if value is other:
        return True
    if type(value) is not type(other):
        return False
    if isinstance(value, torch.Tensor):
        return value.shape == other.shape and bool(torch.equal(value, other))
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(_is_same, value, other))
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(_is_same(one, other[key]) for key, one in value.items())
    return isinstance(value, bool | int | float | str | bytes) and bool(value == other)


def _is_near(value: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(value, expected, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)


def _tensors_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield parameter
            if isinstance(parameter.grad, torch.Tensor):
                yield parameter.grad


class _Fence(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stops an operation on memory of any of these tensors before it runs."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = {place for tensor in tensors if (place := _memory_of(tensor))}

    def __torch_dispatch__(
        self, function: Callable[..., Any], _: Any, arguments: tuple[Any, ...] = (), options: Any = None
    ) -> Any:
        options = options or {}
        for one in tree_iter((arguments, options)):
            if isinstance(one, torch.Tensor) and _memory_of(one) in self._memory:
                raise _StepError("its step reaches tensors that are in none of its groups")
        return function(*arguments, **options)


def _memory_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's memory; 0 if it has none."""
    if tensor.layout != torch.strided or tensor.device.type == "meta" or tensor.is_quantized:
        return 0
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0
