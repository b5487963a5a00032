"""The model spec: a model as data, without its code.

It has the variables, which must be synchronised, with the order in which they are used and in which their gradients
become ready; and the compute timeline of one step. Plans depend only on the variables and these orders, which are
integers; simulators and replay use the seconds of the timeline. So two profiles of one model on different devices make
the same plans.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from autosync import jsonio
from autosync.documents import STRICT
from autosync.frames import sentence_and_table
from autosync.specs.batch_times import BatchTime, check_batch_times
from autosync.specs.cuts import StageCut, check_cuts
from autosync.specs.graph_batching import GraphProfile
from autosync.specs.input_cost import InputCost
from autosync.specs.profiled import Profiled
from autosync.specs.split_layers import SplitLayers, check_splits
from autosync.specs.timeline_order import check_order
from autosync.specs.untrained import Untrained
from autosync.specs.use_sample import UseSample, check_use
from autosync.units import format_size, format_time

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_KIND = "model"
SCHEMA_VERSION = 1

DType = Literal["float32", "float64", "float16", "bfloat16"]
STATE_ITEM_BYTES = 4
"""The bytes of an element of an optimizer's state."""

ITEM_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One trainable parameter that gets a gradient.

    `use` is the position of its first use in the forward pass, counted over all variables; variables of one module have
    the same `use`. `ready` is the position at which its gradient is complete in the backward pass. A tied weight is one
    variable: `use` is its first use, and `ready` its last contribution. `aliases` are its other names.

    `kind` is the form of its gradient: any (`dense`); rows (`embedding`, with the mean and the largest number of
    distinct rows that a rank touches in a step); or a product of two factors with `factor_rows` rows (`linear`; the
    gradient is outputsᵀ · inputs). A tied weight has no factors. `sparse`: torch makes the gradient a sparse tensor,
    as for `nn.Embedding(sparse=True)`; only embeddings have such gradients. `idle`: the variable got no gradient in the
    profiled steps and may get one in others.
    """

    __pydantic_config__ = STRICT

    name: str
    shape: tuple[int, ...]
    dtype: DType = "float32"
    kind: Literal["dense", "embedding", "linear"] = "dense"
    use: int
    ready: int
    touched_rows: float | None = None
    max_touched_rows: int | None = None
    sparse: bool = False
    factor_rows: int | None = None
    aliases: tuple[str, ...] = ()
    idle: bool = False

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable() or any(character in self.name for character in "[]"):
            raise ValueError(f"{self.name!r} is no variable name (one line, not empty, without brackets)")
        if any(size < 1 for size in self.shape):
            raise ValueError(f"the shape {list(self.shape)} has an empty axis (every size is 1 or more)")
        if self.use < 0 or self.ready < 0:
            raise ValueError("use and ready are positions (0 or more)")
        if self.kind == "embedding" and not self._embedding_is_complete():
            raise ValueError(
                "an embedding needs two axes and 0 <= touched_rows <= max_touched_rows <= rows "
                "(touched rows are counted per rank and step)"
            )
        if self.sparse and self.kind != "embedding":
            raise ValueError(f"a {self.kind} variable is sparse (only embeddings have sparse gradients)")
        if self.kind == "linear" and (
            len(self.shape) != 2 or not self.factor_rows or self.factor_rows < 1 or self.aliases
        ):
            raise ValueError(
                "a linear variable needs two axes, factor_rows of 1 or more and no aliases "
                "(factors of a tied weight do not add up)"
            )

    def _embedding_is_complete(self) -> bool:
        if len(self.shape) != 2 or self.touched_rows is None or self.max_touched_rows is None:
            return False
        return 0 <= self.touched_rows <= self.max_touched_rows <= self.shape[0]

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of compute in one module: forward, backward or optimizer.

    `variables` are the variables that it uses (forward), whose gradients are complete at its end (backward), or that it
    updates (optimizer). A module that is called twice has two segments.
    """

    __pydantic_config__ = STRICT

    module: str
    seconds: float
    variables: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise ValueError(f"{self.seconds} is no duration (0 or more seconds)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The compute of one step on one device, in order, without communication. `source` is the origin of the times.

    With gradient accumulation, `forward` and `backward` are the passes of one microstep; see `ModelSpec.step_seconds`.
    `profiled` is None if times were computed, or measured by a version that did not record their quality. `sizes` has
    the times of the passes with batches of three sizes or more, from small to large, or nothing. `cuts` are the places
    where the forward pass can be cut into stages, and `uncut` is the reason why there is none. Both are empty if no
    profile has looked for them. `mixes` is the reason why microbatches would train another model than their batch.
    `splits` are the layers whose gradients of weights can come later; None if no profile has timed these gradients.
    """

    __pydantic_config__ = STRICT

    device: str
    source: Literal["measured", "computed"]
    note: str = ""
    profiled: Profiled | None = None
    forward: tuple[Segment, ...]
    backward: tuple[Segment, ...]
    optimizer: tuple[Segment, ...] = ()
    sizes: tuple[BatchTime, ...] = ()
    cuts: tuple[StageCut, ...] = ()
    uncut: str = ""
    mixes: str = ""
    splits: tuple[SplitLayers, ...] | None = None

    def __post_init__(self) -> None:
        check_batch_times(self.sizes)
        check_splits(self.splits, len(self.sizes), len(self.forward))
        check_cuts(self.cuts, self.uncut, len(self.forward))

    @property
    def seconds(self) -> float:
        """The compute time of one microstep and the update."""
        return sum(segment.seconds for segment in (*self.forward, *self.backward, *self.optimizer))

    def dilated(self, factor: float) -> Timeline:
        """Return the timeline with times that are `factor` times as long."""
        paced = self.paced(passes=factor, update=factor)
        return replace(paced, profiled=self.profiled and self.profiled.dilated(factor))

    def paced(self, *, passes: float, update: float) -> Timeline:
        """Return the timeline with passes that are `passes` times as long, and an update that is `update` times."""
        return replace(
            self,
            forward=_slowed(self.forward, passes),
            backward=_slowed(self.backward, passes),
            optimizer=_slowed(self.optimizer, update),
            sizes=tuple(replace(one, seconds=one.seconds * passes) for one in self.sizes),
            splits=self.splits and tuple(one.scaled(passes) for one in self.splits),
        )


def _slowed(segments: tuple[Segment, ...], factor: float) -> tuple[Segment, ...]:
    return tuple(replace(segment, seconds=segment.seconds * factor) for segment in segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """The facts about an optimizer that plans depend on.

    `elementwise`: the update of each element depends on that element alone (SGD, Adam, AdamW …), so parts and shards
    can be updated separately. `per_variable`: the update of a variable depends on that variable alone, so it can be
    updated as soon as its gradient is ready; None in older files, which give only `elementwise`. `sparse`: the
    optimizer takes sparse gradients. `state_slots`: the number of state tensors for each parameter.
    """

    __pydantic_config__ = STRICT

    name: str
    elementwise: bool = True
    per_variable: bool | None = None
    sparse: bool = False
    state_slots: int = 0

    def __post_init__(self) -> None:
        if self.state_slots < 0:
            raise ValueError(f"{self.state_slots} state slots cannot be (0 or more)")
        if self.elementwise and self.per_variable is False:
            raise ValueError("an elementwise optimizer updates each variable by itself (per_variable is not false)")

    @property
    def updates_apart(self) -> bool:
        """Whether each variable can be updated separately; false if that is unknown."""
        return self.elementwise or bool(self.per_variable)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model with all that synchronisation depends on. `weighs`: its task weighs batches (see `Task.weight`).

    `graphs` is None unless the model's graph changes from example to example.
    `use_sample` says how often ranks use each variable (None: always, for all one knows). Plans do not depend on it.
    `input` is what examples cost, if that was measured.
    """

    __pydantic_config__ = STRICT

    name: str
    batch_size: int = 1
    accumulation_steps: int = 1
    clip_norm: float | None = None
    loss_scaling: bool = False
    weighs: bool = False
    optimizer: OptimizerSpec
    variables: tuple[Variable, ...]
    untrained: tuple[Untrained, ...] = ()
    notes: tuple[str, ...] = ()
    graphs: GraphProfile | None = None
    use_sample: UseSample | None = None
    timeline: Timeline
    input: InputCost | None = None

    def __post_init__(self) -> None:
        if not self.name.isprintable():
            raise ValueError(f"{self.name!r} is no name of a model (one line, without control characters)")
        if not self.variables:
            raise ValueError("the model has no trainable variables (at least one)")
        if self.batch_size < 1 or self.accumulation_steps < 1:
            raise ValueError("batch_size and accumulation_steps count (1 or more)")
        if self.weighs and self.accumulation_steps > 1:
            raise ValueError("a task that weighs its batches accumulates (weights are those of whole steps)")
        if self.clip_norm is not None and not (math.isfinite(self.clip_norm) and self.clip_norm > 0):
            raise ValueError(f"clip_norm {self.clip_norm} clips everything (above 0)")
        names = {variable.name for variable in self.variables}
        if len(names) != len(self.variables):
            raise ValueError("two variables have the same name (names are unique)")
        if sorted(v.ready for v in self.variables) != list(range(len(self.variables))):
            raise ValueError(
                "ready must count 0, 1, 2 … over the variables (each gradient is ready at a position of its own)"
            )
        if twice := names.intersection(parameter.name for parameter in self.untrained):
            raise ValueError(f"{min(twice)!r} is a variable and untrained too (a parameter is one of them)")
        check_use(self.use_sample, names)
        self._check_timeline(names)

    def _check_timeline(self, names: set[str]) -> None:
        """Raise ValueError unless the timeline has every variable, in the order that plans are made for."""
        timeline = self.timeline
        for segment in (*timeline.forward, *timeline.backward, *timeline.optimizer):
            unknown = set(segment.variables) - names
            if unknown:
                name = min(unknown)
                raise ValueError(
                    f"the timeline names {name!r} in {segment.module!r} (segments name the spec's variables)"
                )
        ready = [name for segment in timeline.backward for name in segment.variables]
        if len(ready) != len(set(ready)):
            raise ValueError("the timeline's backward pass names a variable twice (a gradient is complete once)")
        for what, segments, order in (
            ("forward", timeline.forward, {v.name: v.use for v in self.variables}),
            ("backward", timeline.backward, {v.name: v.ready for v in self.variables}),
        ):
            if segments:
                check_order(what, [segment.variables for segment in segments], order)

    @property
    def num_bytes(self) -> int:
        """The bytes of all gradients in dense form."""
        return sum(variable.num_bytes for variable in self.variables)

    @property
    def untrained_bytes(self) -> int:
        """The bytes of the parameters that are not trained. A spec does not know buffers."""
        # Frozen parameters may have other types, which are mostly shorter.
        return sum(math.prod(one.shape) * ITEM_BYTES.get(one.dtype, 4) for one in self.untrained)

    @property
    def num_parameters(self) -> int:
        """The number of elements of trainable parameters, including parameters without a gradient."""
        idle = sum(math.prod(u.shape) for u in self.untrained if u.reason == "unused")
        return sum(variable.num_elements for variable in self.variables) + idle

    @property
    def step_seconds(self) -> float:
        """The compute time of one optimizer step: all its microsteps and the update."""
        microstep = sum(segment.seconds for segment in (*self.timeline.forward, *self.timeline.backward))
        return self.accumulation_steps * microstep + sum(segment.seconds for segment in self.timeline.optimizer)

    def variable(self, name: str) -> Variable:
        """Return the variable of that name."""
        return variables_by_name(self)[name]

    def dilated(self, factor: float) -> ModelSpec:
        """Return the model with compute times that are `factor` times as long and the same bytes."""
        timeline, examples = self.timeline.dilated(factor), self.input and self.input.dilated(factor)
        return replace(self, name=f"{self.name}@x{factor:g}", timeline=timeline, input=examples)

    def fingerprint(self) -> str:
        """Return a hash of everything that plans without stages depend on, without times and notes.

        The batch size, the cuts and the modules of the forward pass, on which stages depend, are left out.
        """
        return _fingerprint(self)

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each variable, in the order in which the variables are used."""
        import pandas as pd

        ordered = sorted(self.variables, key=lambda one: one.use)
        return pd.DataFrame(
            {
                "variable": [one.name for one in ordered],
                "kind": [one.kind for one in ordered],
                "shape": [" × ".join(map(str, one.shape)) for one in ordered],
                "dtype": [one.dtype for one in ordered],
                "num_bytes": [one.num_bytes for one in ordered],
                "ready": [one.ready for one in ordered],
            }
        )

    def _repr_html_(self) -> str:
        compute = f"compute of a step: {format_time(self.step_seconds)}, {self.timeline.source}"
        words = f"{self.name}: {len(self.variables)} variables, {format_size(self.num_bytes)} of gradients; {compute}."
        return sentence_and_table(words, self.to_frame())


@functools.lru_cache(maxsize=256)
def variables_by_name(model: ModelSpec) -> Mapping[str, Variable]:
    """Return the variables of a model by name."""
    return {variable.name: variable for variable in model.variables}


@functools.lru_cache(maxsize=256)
def _fingerprint(model: ModelSpec) -> str:
    from autosync.documents import to_plain

    facts = (model.variables, model.optimizer, model.accumulation_steps, model.clip_norm, model.loss_scaling)
    return jsonio.content_hash(to_plain((*facts, "weighs") if model.weighs else facts))
