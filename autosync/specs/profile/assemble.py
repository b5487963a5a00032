"""Assembles a model spec from recorded steps. The same records always make the same spec.

Orders are facts of the program and come from one step. Times are medians over steps that did the same things. The
number of measured steps depends on how steady they are; so that plans do not depend on it, everything except the times
comes from a fixed number of first steps.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from autosync.errors import Problem, TaskError
from autosync.specs.model import ITEM_BYTES, ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.specs.profile.machine_load import MachineLoad
from autosync.specs.profile.recorder import Microstep, ModelStructure
from autosync.specs.profile.steadiness import profiled
from autosync.specs.untrained import Untrained


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledStep:
    """One optimizer step: its microsteps, the time of the update, and the number of distinct rows that it touched."""

    microsteps: tuple[Microstep, ...]
    update_seconds: float
    touched_rows: Mapping[str, int]

    @property
    def seconds(self) -> float:
        """The compute time of the step."""
        passes = (sum(one.forward_seconds) + sum(one.backward_seconds) for one in self.microsteps)
        return sum(passes) + self.update_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRecords:
    """All records of a task.

    `facts` is the step in which autograd was asked for the order of uses. Of `later` steps, only the times are used.
    `sparse` names the variables whose gradients were sparse tensors. `load` is the load of the machine while times were
    measured; None if times were computed.
    """

    structure: ModelStructure
    facts: ProfiledStep
    steps: tuple[ProfiledStep, ...]
    later: tuple[ProfiledStep, ...] = ()
    sparse: frozenset[str]
    optimizer: OptimizerSpec
    device: str
    source: str
    note: str
    notes: tuple[str, ...] = ()
    load: MachineLoad | None = None

    @property
    def timed(self) -> tuple[ProfiledStep, ...]:
        """All steps whose times are used."""
        return self.steps + self.later


class TrainingFacts(Protocol):
    """What a model spec says of a training besides its records: a task declares it, and of a script it is observed."""

    @property
    def name(self) -> str: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def accumulation_steps(self) -> int: ...
    @property
    def clip_norm(self) -> float | None: ...
    @property
    def loss_scaling(self) -> bool: ...


def assemble(task: TrainingFacts, records: ProfileRecords) -> ModelSpec:
    """Build the model spec of a training from its records."""
    structure = records.structure
    trained = [name for name, parameter in structure.parameters.items() if parameter.requires_grad]
    microsteps = [m for step in records.steps for m in step.microsteps]
    notes = list(records.notes)
    ready = _ready_order(microsteps, notes)
    if not ready:
        raise TaskError("no parameter got a gradient", rule="the loss must depend on at least one parameter")
    idle = _idle(structure, ready, notes)
    ready += idle
    positions = _use_positions(records, ready)
    ranks = {position: rank for rank, position in enumerate(sorted({positions[name] for name in ready}))}
    variables = tuple(
        replace(
            _variable(records, name, use=ranks[positions[name]], ready=ready.index(name), notes=notes),
            idle=name in idle,
        )
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
    model = ModelSpec(
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
            forward=_forward(records, positions, ready),
            backward=_backward(records, microsteps[-1], ready),
            optimizer=_optimizer(records, variables),
        ),
    )
    if records.load is None:
        return model
    found = profiled([step.seconds for step in records.timed], model.step_seconds, records.load)
    return replace(model, timeline=replace(model.timeline, profiled=found))


def _ready_order(microsteps: Sequence[Microstep], notes: list[str]) -> list[str]:
    """Return the order in which gradients become ready. If one becomes ready several times, the last time counts."""
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


def _idle(structure: ModelStructure, ready: Sequence[str], notes: list[str]) -> list[str]:
    """Return trainable parameters without a gradient.

    They are synchronised too, because other batches may take another branch of the model.
    """
    idle = [
        name
        for name, parameter in structure.parameters.items()
        if parameter.requires_grad and 0 not in parameter.shape and name not in set(ready)
    ]
    if idle:
        names = f"{', '.join(idle[:3])}{' …' if len(idle) > 3 else ''}"
        notes.append(
            f"{len(idle)} parameters got no gradient in the profiled steps, and are taken as ready last: {names}"
        )
    return idle[::-1]


def _use_positions(records: ProfileRecords, ready: Iterable[str]) -> dict[str, int]:
    """Return the module call at which each variable is first needed.

    It is the first call of the variable's own module, or of an earlier module that uses the variable.
    """
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


def _variable(records: ProfileRecords, name: str, *, use: int, ready: int, notes: list[str]) -> Variable:
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
    """Return the short name of a type: `float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def _is_embedding_weight(records: ProfileRecords, name: str) -> bool:
    uses = records.steps[-1].microsteps[-1].uses.get(name)
    return uses is not None and uses.looks_up and not uses.is_embedding


def _factor_rows(records: ProfileRecords, name: str) -> int | None:
    """Return the number of rows of a gradient's factors, or None if the gradient has none.

    Only the weight of a linear layer that is used once in each microstep has factors.
    """
    structure = records.structure
    owner = structure.owners[name]
    # `getattr` would run a parametrization that computes the weight.
    own = dict(structure.modules[owner].named_parameters(recurse=False, remove_duplicate=False))
    if structure.aliases[name] or own.get("weight") is not structure.parameters[name]:
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


def _untrained(structure: ModelStructure, ready: Sequence[str]) -> Iterable[Untrained]:
    for name, parameter in structure.parameters.items():
        if name not in set(ready):
            yield Untrained(
                name=name,
                shape=tuple(parameter.shape),
                dtype=dtype_name(parameter.dtype),
                reason=_idle_reason(parameter),
            )


def _idle_reason(parameter: Any) -> Literal["frozen", "unused", "empty"]:
    if not parameter.requires_grad:
        return "frozen"
    return "unused" if parameter.numel() else "empty"


_IDLE_WORDS = {
    "unused": "got no gradient in the profiled steps",
    "frozen": "are frozen",
    "empty": "have no elements, and nothing to synchronise",
}


def _describe_sharing(
    structure: ModelStructure, microstep: Microstep, variables: Sequence[Variable], notes: list[str]
) -> None:
    """Add notes about tied weights, modules that are called again, and uses that autograd hides."""
    for variable in variables:
        if variable.aliases:
            notes.append(f"{variable.name} is tied with {', '.join(variable.aliases)}")
        if variable.name in microstep.ready and variable.name not in microstep.uses:
            notes.append(f"how {variable.name} is used hides in a custom autograd function: taken as dense")
    for module, count in Counter(call.module for call in microstep.calls).items():
        if count > 1:
            notes.append(f"{module} is called {count} times a microstep")
    for reason, names in _idle_parameters(structure, variables).items():
        notes.append(f"{len(names)} parameters {reason}: {', '.join(names[:3])}{' …' if len(names) > 3 else ''}")


def _idle_parameters(structure: ModelStructure, variables: Sequence[Variable]) -> dict[str, list[str]]:
    trained = {variable.name for variable in variables}
    groups: dict[str, list[str]] = {}
    for name, parameter in structure.parameters.items():
        if name not in trained:
            groups.setdefault(_IDLE_WORDS[_idle_reason(parameter)], []).append(name)
    return groups


def _forward(records: ProfileRecords, positions: Mapping[str, int], ready: Sequence[str]) -> tuple[Segment, ...]:
    # Positions refer to these calls, so only microsteps with the same calls are used.
    known = records.facts.microsteps[-1]
    alike = [m for step in records.timed for m in step.microsteps if m.modules == known.modules] or [known]
    seconds = medians([m.forward_seconds for m in alike])
    if not known.calls:
        return (Segment(module="model", seconds=round_time(sum(seconds)), variables=tuple(ready)),)
    # Time before the first call belongs to that call: no transfer is awaited earlier.
    seconds = [seconds[0] + seconds[1], *seconds[2:]]
    segments = []
    for position, (call, duration) in enumerate(zip(known.calls, seconds, strict=True)):
        owned = [name for name in records.structure.owned[call.module] if name in positions]
        reached = [name for name in ready if positions[name] == position and name not in owned]
        segments.append(Segment(module=call.module, seconds=round_time(duration), variables=(*owned, *reached)))
    return tuple(segments)


def _backward(records: ProfileRecords, last: Microstep, ready: Sequence[str]) -> tuple[Segment, ...]:
    alike = [m for step in records.timed for m in step.microsteps if m.ready == last.ready]
    seconds = medians([m.backward_seconds for m in alike])
    final = {name: position for position, name in enumerate(last.ready)}
    merged: list[tuple[str, float, tuple[str, ...]]] = []
    for position, (name, duration) in enumerate(zip(last.ready, seconds, strict=False)):
        owner = records.structure.owners[name]
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


def _optimizer(records: ProfileRecords, variables: Sequence[Variable]) -> tuple[Segment, ...]:
    """Return a segment for each module: the time of the update, split by the number of updated elements."""
    total = statistics.median(step.update_seconds for step in records.timed)
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


def _num_updated(records: ProfileRecords, variable: Variable) -> float:
    if variable.touched_rows is not None and variable.name in records.sparse:
        return variable.touched_rows * variable.shape[1]
    return variable.num_elements


def medians(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the median of each column, scaled so that the medians add up to the median of the row sums."""
    columns = [statistics.median(column) for column in zip(*rows, strict=True)]
    whole, parts = statistics.median(sum(row) for row in rows), sum(columns)
    return [column * whole / parts for column in columns] if parts > 0 else columns


def round_time(seconds: float) -> float:
    """Round to four digits: no clock is more precise."""
    return float(f"{seconds:.4g}")
