"""From recorded steps to a model spec. Pure: the same records make the same spec.

Orders are facts of the program and come from one step; times are medians over the steps that did the same things.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autosync.errors import Problem, TaskError
from autosync.specs.model import ITEM_BYTES, ModelSpec, OptimizerSpec, Segment, Timeline, Untrained, Variable
from autosync.specs.profile_record import Microstep, Structure
from autosync.specs.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step: its microsteps, the update's time, and for embeddings the distinct rows that it touched."""

    microsteps: tuple[Microstep, ...]
    update_seconds: float
    touched_rows: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """All that was recorded of a task.

    `facts` is the step in which autograd was asked for the order of uses; `sparse` names the gradients that were
    sparse tensors.
    """

    structure: Structure
    facts: Step
    steps: tuple[Step, ...]
    sparse: frozenset[str]
    optimizer: OptimizerSpec
    device: str
    source: str
    note: str
    notes: tuple[str, ...] = ()


def assemble(task: Task, records: Records) -> ModelSpec:
    """The model spec of a task from what was recorded of it."""
    structure = records.structure
    trained = [name for name, parameter in structure.parameters.items() if parameter.requires_grad]
    microsteps = [m for step in records.steps for m in step.microsteps]
    notes = list(records.notes)
    ready = _ready_order(microsteps, notes)
    if not ready:
        raise TaskError("no parameter got a gradient", rule="the loss must depend on at least one parameter")
    positions = _use_positions(records, ready)
    ranks = {position: rank for rank, position in enumerate(sorted({positions[name] for name in ready}))}
    variables = tuple(
        _variable(records, name, use=ranks[positions[name]], ready=ready.index(name), notes=notes)
        for name in trained
        if name in set(ready)
    )
    _describe_sharing(structure, microsteps[-1], variables, notes)
    num_alike = sum(m.modules == records.facts.microsteps[-1].modules for m in microsteps)
    if num_alike < len(microsteps):
        notes.append(f"the modules called change: {num_alike} of {len(microsteps)} microsteps called those given here")
    if task.accumulation_steps > 1:
        notes.append(
            f"gradients accumulate over {task.accumulation_steps} microsteps: forward and backward times are those "
            "of one, touched rows and factor rows count all"
        )
    return ModelSpec(
        name=task.name or "model",
        batch_size=task.batch_size,
        accumulation_steps=task.accumulation_steps,
        clip_norm=None if task.clip_norm is None else float(task.clip_norm),
        loss_scaling=task.loss_scaling,
        optimizer=records.optimizer,
        variables=variables,
        untrained=tuple(_untrained(structure, ready)),
        notes=tuple(notes),
        timeline=Timeline(
            device=records.device,
            source="computed" if records.source == "computed" else "measured",
            note=records.note,
            forward=_forward(records, microsteps, positions, ready),
            backward=_backward(structure, microsteps, ready),
            optimizer=_optimizer(records, variables),
        ),
    )


def _ready_order(microsteps: Sequence[Microstep], notes: list[str]) -> list[str]:
    """The order in which gradients become ready; a variable that becomes so several times counts where it does last."""
    orders = [list(reversed(dict.fromkeys(reversed(m.ready)))) for m in microsteps]
    order = orders[-1]
    if any(other != order for other in orders):
        num_same = sum(other == order for other in orders)
        notes.append(
            "the order in which gradients become ready changes: "
            f"{num_same} of {len(orders)} microsteps had the one given here"
        )
    seen = dict.fromkeys(name for other in orders for name in other)
    late = [name for name in seen if name not in set(order)]
    for name in late:
        count = sum(name in other for other in orders)
        notes.append(f"{name} got a gradient in {count} of {len(orders)} microsteps: taken as ready last")
    return order + late


def _use_positions(records: Records, ready: Iterable[str]) -> dict[str, int]:
    """The call at which each variable is first needed: its own module's, or an earlier one that reaches for it."""
    microstep = records.facts.microsteps[-1]
    structure = records.structure
    first_call: dict[str, int] = {}
    for position, call in enumerate(microstep.calls):
        for name in structure.owned[call.module]:
            first_call.setdefault(name, position)
    positions = {}
    for name in ready:
        found = [first_call[name]] if name in first_call else []
        if name in microstep.uses:
            sequence = microstep.uses[name].first_sequence
            under_way = sum(call.sequence < sequence for call in microstep.calls) - 1
            found.append(max(under_way, 0))
        positions[name] = min(found, default=0)
    return positions


def _variable(records: Records, name: str, *, use: int, ready: int, notes: list[str]) -> Variable:
    structure = records.structure
    parameter = structure.parameters[name]
    shape, dtype = tuple(parameter.shape), dtype_name(parameter.dtype)
    facts: dict[str, Any] = {
        "name": name,
        "shape": shape,
        "dtype": dtype,
        "use": use,
        "ready": ready,
        "aliases": structure.aliases[name],
    }
    touched = [step.touched_rows.get(name) for step in records.steps]
    counts = [count for count in touched if count is not None]
    rows = _factor_rows(records, name)
    if dtype not in ITEM_BYTES or dtype in ("int64", "int32", "uint8"):
        raise TaskError([Problem(what=f"{name} is of type {dtype}", rule="known: float32, float64, float16, bfloat16")])
    if "[" in name or "]" in name:
        raise TaskError(
            [Problem(what=f"the parameter name {name!r} has brackets", rule="autosync writes parts as name[0:4]")]
        )
    is_sparse = name in records.sparse
    if counts and len(counts) == len(touched) and len(shape) == 2:
        mean = round(statistics.fmean(counts), 2)
        return Variable(**facts, kind="embedding", touched_rows=mean, max_touched_rows=max(counts), sparse=is_sparse)
    if is_sparse:
        notes.append(f"{name} has a sparse gradient and is no embedding: taken as dense")
    if _is_embedding_weight(records, name):
        notes.append(f"{name} is also used outside of its embedding: its gradient is dense")
    if rows is not None:
        return Variable(**facts, kind="linear", factor_rows=rows)
    return Variable(**facts)


def dtype_name(dtype: object) -> str:
    """`torch.float32` -> `float32`."""
    return str(dtype).removeprefix("torch.")


def _is_embedding_weight(records: Records, name: str) -> bool:
    uses = records.steps[-1].microsteps[-1].uses.get(name)
    return uses is not None and uses.looks_up and not uses.is_embedding


def _factor_rows(records: Records, name: str) -> int | None:
    """Rows of the factors of a linear layer's weight, used once in each microstep; None where there are none."""
    structure = records.structure
    owner = structure.owners[name]
    if structure.aliases[name] or getattr(structure.modules[owner], "weight", None) is not structure.parameters[name]:
        return None
    totals = []
    for step in records.steps:
        total = 0
        for microstep in step.microsteps:
            calls = [call for call in microstep.calls if call.module == owner]
            uses = microstep.uses.get(name)
            if len(calls) != 1 or uses is None or len(uses.operations) != 1:
                return None
            if not calls[0].factor_rows:
                return None
            total += calls[0].factor_rows
        totals.append(total)
    return max(totals)


def _untrained(structure: Structure, ready: Sequence[str]) -> Iterable[Untrained]:
    for name, parameter in structure.parameters.items():
        if name not in set(ready):
            yield Untrained(
                name=name,
                shape=tuple(parameter.shape),
                dtype=dtype_name(parameter.dtype),
                reason="unused" if parameter.requires_grad else "frozen",
            )


def _describe_sharing(
    structure: Structure, microstep: Microstep, variables: Sequence[Variable], notes: list[str]
) -> None:
    """What is out of the ordinary: tied weights, modules called again, gradients nobody can see into."""
    for variable in variables:
        if variable.aliases:
            notes.append(f"{variable.name} is tied with {', '.join(variable.aliases)}")
        if variable.name not in microstep.uses:
            notes.append(f"how {variable.name} is used hides in a custom autograd function: taken as dense")
    for module, count in Counter(call.module for call in microstep.calls).items():
        if count > 1:
            notes.append(f"{module} is called {count} times a microstep")
    for reason, names in _idle_parameters(structure, variables).items():
        notes.append(f"{len(names)} parameters {reason}: {', '.join(names[:3])}{' …' if len(names) > 3 else ''}")


def _idle_parameters(structure: Structure, variables: Sequence[Variable]) -> dict[str, list[str]]:
    trained = {variable.name for variable in variables}
    groups: dict[str, list[str]] = {}
    for name, parameter in structure.parameters.items():
        if name not in trained:
            reason = "got no gradient in the profiled steps" if parameter.requires_grad else "are frozen"
            groups.setdefault(reason, []).append(name)
    return groups


def _forward(
    records: Records, microsteps: Sequence[Microstep], positions: Mapping[str, int], ready: Sequence[str]
) -> tuple[Segment, ...]:
    # The positions are places among these calls; other microsteps count where they made the same.
    known = records.facts.microsteps[-1]
    alike = [m for m in microsteps if m.modules == known.modules] or [known]
    seconds = medians([m.forward_seconds for m in alike])
    if not known.calls:
        return (Segment(module="model", seconds=round_time(sum(seconds)), variables=tuple(ready)),)
    # What comes before the first call belongs to it: nothing can be waited for any earlier.
    seconds = [seconds[0] + seconds[1], *seconds[2:]]
    segments = []
    for position, (call, duration) in enumerate(zip(known.calls, seconds, strict=True)):
        owned = [name for name in records.structure.owned[call.module] if name in positions]
        reached = [name for name in ready if positions[name] == position and name not in owned]
        segments.append(Segment(module=call.module, seconds=round_time(duration), variables=(*owned, *reached)))
    return tuple(segments)


def _backward(structure: Structure, microsteps: Sequence[Microstep], ready: Sequence[str]) -> tuple[Segment, ...]:
    last = microsteps[-1]
    alike = [m for m in microsteps if m.ready == last.ready]
    seconds = medians([m.backward_seconds for m in alike])
    final = {name: position for position, name in enumerate(last.ready)}
    merged: list[tuple[str, float, tuple[str, ...]]] = []
    for position, (name, duration) in enumerate(zip(last.ready, seconds, strict=False)):
        owner = structure.owners[name]
        completed = (name,) if final[name] == position else ()
        if merged and merged[-1][0] == owner:
            _, before, names = merged.pop()
            merged.append((owner, before + duration, names + completed))
        else:
            merged.append((owner, duration, completed))
    module, duration, names = merged.pop()
    missing = tuple(name for name in ready if name not in final)
    merged.append((module, duration + seconds[-1], names + missing))
    return tuple(Segment(module=module, seconds=round_time(s), variables=names) for module, s, names in merged)


def _optimizer(records: Records, variables: Sequence[Variable]) -> tuple[Segment, ...]:
    """The update's time, split over the modules in proportion to the elements that it updates."""
    total = statistics.median(step.update_seconds for step in records.steps)
    elements: dict[str, float] = {}
    owned: dict[str, list[str]] = {}
    for variable in variables:
        owner = records.structure.owners[variable.name]
        elements[owner] = elements.get(owner, 0) + _num_updated(records, variable)
        owned.setdefault(owner, []).append(variable.name)
    whole = sum(elements.values()) or 1
    return tuple(
        Segment(module=owner, seconds=round_time(total * share / whole), variables=tuple(owned[owner]))
        for owner, share in elements.items()
    )


def _num_updated(records: Records, variable: Variable) -> float:
    if variable.touched_rows is not None and variable.name in records.sparse:
        return variable.touched_rows * variable.shape[1]
    return variable.num_elements


def medians(rows: Sequence[Sequence[float]]) -> list[float]:
    """The median of each column, scaled so that they add up to the median of the rows' sums."""
    columns = [statistics.median(column) for column in zip(*rows, strict=True)]
    whole, parts = statistics.median(sum(row) for row in rows), sum(columns)
    return [column * whole / parts for column in columns] if parts > 0 else columns


def round_time(seconds: float) -> float:
    """Four digits: no clock is better than that."""
    return float(f"{seconds:.4g}")
