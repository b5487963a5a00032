"""Finds the settings with which stock DDP does what a strategy says, and the buckets that settings make.

**What DDP does.** DDP runs one all-reduce for each bucket, with the backend's own algorithm, launches them in one order
while backward runs, and finishes them before backward returns. After its first step DDP fills buckets in the order in
which gradients became ready, for each dtype separately, and closes the k-th bucket of a dtype when it reaches the k-th
cap. So DDP can express a strategy if each message is a run of whole gradients in that order, and if one list of caps
closes all of them. A cap may be any size that is larger than the bucket without its last gradient and not larger than
the bucket; the roundest number of this range is taken.

If some steps leave parameters out, DDP must search for unused ones. It then never fills its buckets anew, and keeps
those in the order of declaration.

All other strategies are refused with a reason, and so are all strategies of a task that weighs its batches. A codec
must be one of torch's communication hooks, which encode every bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autosync.errors import DoesNotApplyError, Problem
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, Segment, Variable, variables_by_name
from autosync.strategy.canonical import canonical
from autosync.strategy.emit.hooks import CommunicationHook, hook_of
from autosync.strategy.emit.settings import DdpSettings
from autosync.strategy.parts import PartName
from autosync.strategy.presets.buckets import DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES, MIB, assign_by_size
from autosync.strategy.presets.common import in_ready_order, is_sparse_to_ddp
from autosync.strategy.representation import Message, Strategy, without
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.sparse_gather import SparseGather

WEIGHED = "the task weighs its batches, and DDP takes the plain mean of the ranks' gradients"
RULE = "what stock DDP does: one all-reduce of whole gradients a bucket, in the order in which they become ready"


@dataclass(frozen=True, slots=True)
class _Range:
    """The caps that close a bucket at its last gradient: above `low`, up to `high` bytes (None: any)."""

    low: int
    high: int | None

    def meet(self, other: _Range) -> _Range:
        highs = [high for high in (self.high, other.high) if high is not None]
        return _Range(max(self.low, other.low), min(highs) if highs else None)

    def takes(self, cap: int) -> bool:
        return self.low < cap and (self.high is None or cap <= self.high)

    @property
    def is_empty(self) -> bool:
        return self.high is not None and self.low >= self.high


def settings_for(
    strategy: Strategy, model: ModelSpec, cluster: ClusterSpec, *, gradient_as_bucket_view: bool = True
) -> DdpSettings:
    """Return the settings with which stock DDP does what a legal strategy says.

    Raises DoesNotApplyError with the reasons if there are no such settings. By default gradients are views into their
    buckets, which saves a copy.
    """
    form, model, frozen = _without_idle(canonical(strategy, model, cluster), model)
    reasons = list(_reasons(form, model, cluster))
    if reasons:
        # One problem, since all reasons break the same rule.
        raise DoesNotApplyError([Problem(what=f"stock DDP cannot do this: {'; '.join(reasons[:3])}", rule=RULE)])
    hook = _hook(form, model, cluster)
    ranges = _ranges(_by_dtype(hook.messages, model, cluster))
    settings = DdpSettings(
        find_unused_parameters=model.use_sample is not None,
        gradient_as_bucket_view=gradient_as_bucket_view,
        hook=hook.codec,
        frozen=frozen,
    )
    settings = _with_caps(settings, ranges)
    gathered = [message for message in form.messages if isinstance(message.synchroniser, SparseGather)]
    promised = {frozenset(message.parts) for message in (*hook.messages, *gathered)}
    built = {frozenset(variable.name for variable in bucket) for bucket in buckets_under(settings, model, cluster)}
    assert built == promised, "caps are made for the buckets"
    return settings


def why_not_ddp(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> list[str]:
    """Return the reasons why stock DDP cannot express a legal strategy; none if it can."""
    form, model, _ = _without_idle(canonical(strategy, model, cluster), model)
    return list(_reasons(form, model, cluster))


def _without_idle(form: Strategy, model: ModelSpec) -> tuple[Strategy, ModelSpec, tuple[str, ...]]:
    """Return a strategy and a model without the variables that got no gradient in the profiled steps, and their names.

    DDP waits for the gradient of every trainable parameter, so these must be frozen first. If some variables are used
    in some steps and not in others, it searches for unused ones instead.
    """
    unused = tuple(parameter.name for parameter in model.untrained if parameter.reason == "unused")
    if _searches(model):
        return form, as_ddp_fills(model), unused
    model = replace(model, use_sample=None)
    idle = {variable.name for variable in model.variables if variable.idle}
    if not idle:
        return form, model, unused

    def kept(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        return tuple(replace(one, variables=tuple(v for v in one.variables if v not in idle)) for one in segments)

    timeline = model.timeline
    timeline = replace(
        timeline,
        forward=kept(timeline.forward),
        backward=kept(timeline.backward),
        optimizer=kept(timeline.optimizer),
    )
    variables = tuple(variable for variable in model.variables if not variable.idle)
    model = replace(model, variables=variables, timeline=timeline)
    return without(form, idle), model, (*sorted(idle), *unused)


def _searches(model: ModelSpec) -> bool:
    """Whether DDP has to search for unused parameters, because steps use different ones."""
    sample = model.use_sample
    if sample is None:
        return False
    wanted = (0.0 if variable.idle else 1.0 for variable in model.variables)
    return any(
        sample.share([variable.name], 1) != share for variable, share in zip(model.variables, wanted, strict=True)
    )


def as_ddp_fills(model: ModelSpec) -> ModelSpec:
    """Return the model with its gradients in the order in which DDP fills its buckets after its first steps."""
    if not _searches(model):
        return model
    variables = tuple(replace(variable, ready=place) for place, variable in enumerate(model.variables))
    return replace(model, variables=variables, timeline=replace(model.timeline, backward=()))


def buckets_under(settings: DdpSettings, model: ModelSpec, cluster: ClusterSpec) -> list[list[Variable]]:
    """Return DDP's buckets after it has rebuilt them, in the order in which they close; a sparse gradient is alone."""
    variables = in_ready_order(model.variables) if settings.rebuilds_buckets else list(model.variables)
    variables = [variable for variable in variables if variable.name not in settings.frozen]
    return assign_by_size(variables, settings.limits_bytes, lambda v: is_sparse_to_ddp(v, model, cluster))


def _of_whole_step(form: Strategy, model: ModelSpec) -> list[tuple[bool, str]]:
    """Return what DDP cannot do of the settings of a whole step, and whether the strategy does it."""
    return [
        (form.overlap != "backward", "transfers overlap the next forward pass, and DDP's end when backward returns"),
        (bool(form.stages), "ranks compute stages of the model, and with DDP each rank computes all layers"),
        (
            bool(form.shares),
            "the ranks compute uneven shares of the batch, and DDP takes the plain mean of their gradients",
        ),
        (model.weighs, WEIGHED),
        (
            form.batching is not None,
            "the strategy says how graphs are batched and dealt to ranks, and DDP has no setting for it",
        ),
        (form.num_lanes > 1, "messages are in several lanes, and DDP has one order"),
    ]


def _reasons(form: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Iterator[str]:
    yield from (reason for is_so, reason in _of_whole_step(form, model) if is_so)
    wrong: dict[str, list[str]] = {}
    for message in form.messages:
        for name, what in _message_reasons(message, model, cluster):
            wrong.setdefault(what, []).append(name)
    for what, found in wrong.items():
        names = list(dict.fromkeys(found))
        yield f"{names[0]}{f' (and {len(names) - 1} more)' if len(names) > 1 else ''} {what}"
    if wrong:
        return
    hook = _hook(form, model, cluster)
    if hook.reason:
        yield hook.reason
        return
    between = _apart(hook.messages, model, cluster)
    if between:
        yield between
    elif any(limit.is_empty for limit in _ranges(_by_dtype(hook.messages, model, cluster))):
        yield "its buckets of several dtypes have sizes that no one list of caps comes to"


def _message_reasons(message: Message, model: ModelSpec, cluster: ClusterSpec) -> Iterator[tuple[str, str]]:
    """Yield variables of a message, each with what DDP cannot do with it."""
    synchroniser = message.synchroniser
    names = [PartName.parse(name) for name in message.parts]
    first = names[0].variable
    cut = next((name.variable for name in names if not name.whole), None)
    if cut is not None:
        yield cut, "is cut into parts"
        return
    if message.slice_bytes is not None:
        yield first, "travels in slices"
    sparse = [name.variable for name in names if model.variable(name.variable).sparse]
    if isinstance(synchroniser, SparseGather):
        if not is_sparse_to_ddp(model.variable(first), model, cluster):
            yield first, "has its rows gathered, and torch gives DDP a dense gradient of it"
        elif synchroniser.topology != "native":
            yield first, "has its rows gathered in a ring, and DDP takes the backend's own algorithm"
    elif not isinstance(synchroniser, AllReduce):
        yield first, f"is synchronised by {synchroniser.kind.replace('_', ' ')}"
    elif synchroniser.hierarchical or synchroniser.topology != "native":
        how = "hierarchically" if synchroniser.hierarchical else f"by {synchroniser.topology.replace('_', ' ')}"
        yield first, f"is all-reduced {how}, and DDP takes the backend's own algorithm"
    elif sparse:
        yield sparse[0], "travels dense, and torch gives DDP a sparse gradient of it"


def _hook(form: Strategy, model: ModelSpec, cluster: ClusterSpec) -> CommunicationHook:
    hook = hook_of([m for m in form.messages if isinstance(m.synchroniser, AllReduce)], model, cluster.backend)
    gathered = next((m for m in form.messages if isinstance(m.synchroniser, SparseGather)), None)
    if hook.codec is None or gathered is None:
        return hook
    # The Reducer calls the hook for a sparse gradient's bucket as for any other.
    reason = f"the rows of {gathered.parts[0]} travel as they are, and torch's hook sees every bucket"
    return replace(hook, reason=reason)


def _apart(messages: Sequence[Message], model: ModelSpec, cluster: ClusterSpec) -> str:
    """Return why a message is no run of gradients in the order in which they become ready; empty if all are runs."""
    home = {name: position for position, message in enumerate(messages) for name in message.parts}
    open_of: dict[str, Variable] = {}
    closed: dict[int, tuple[Variable, Variable]] = {}
    for variable in in_ready_order(model.variables):
        if is_sparse_to_ddp(variable, model, cluster):
            continue
        mine = home[variable.name]
        if mine in closed:
            last, other = closed[mine]
            what = "whose gradient comes between" if model.use_sample is None else "which is declared between them"
            return f"{last.name} and {variable.name} travel together without {other.name}, {what}"
        before = open_of.get(variable.dtype)
        if before is not None and home[before.name] != mine:
            closed[home[before.name]] = (before, variable)
        open_of[variable.dtype] = variable
    return ""


def _by_dtype(messages: Sequence[Message], model: ModelSpec, cluster: ClusterSpec) -> list[list[list[Variable]]]:
    """Return the buckets of each dtype, each in the order in which gradients become ready."""
    known = variables_by_name(model)
    found: dict[str, list[list[Variable]]] = {}
    for message in messages:
        bucket = in_ready_order(known[name] for name in message.parts)
        if not is_sparse_to_ddp(bucket[0], model, cluster):
            found.setdefault(bucket[0].dtype, []).append(bucket)
    return [sorted(buckets, key=lambda bucket: bucket[0].ready) for buckets in found.values()]


def _ranges(buckets_of_dtypes: Sequence[Sequence[Sequence[Variable]]]) -> list[_Range]:
    """Return for each k the caps that close the k-th bucket of every dtype."""
    found: list[_Range] = []
    for buckets in buckets_of_dtypes:
        for position, bucket in enumerate(buckets):
            size = sum(variable.num_bytes for variable in bucket)
            is_last = position == len(buckets) - 1
            limit = _Range(size - bucket[-1].num_bytes, None if is_last else size)
            if position == len(found):
                found.append(limit)
            else:
                found[position] = found[position].meet(limit)
    return found


def _with_caps(settings: DdpSettings, ranges: Sequence[_Range]) -> DdpSettings:
    """Return the settings with as few caps as possible: none, one cap, or a list whose last cap repeats."""
    if not ranges:
        return settings
    defaults = (DEFAULT_FIRST_CAP_BYTES, *[DEFAULT_CAP_BYTES] * (len(ranges) - 1))
    if all(limit.takes(cap) for limit, cap in zip(ranges, defaults, strict=True)):
        return settings
    caps: list[float] = []
    tail: _Range | None = None
    for limit in reversed(ranges):
        shared = limit if tail is None else tail.meet(limit)
        if not caps and not shared.is_empty:
            tail = shared
        elif not caps:
            assert tail is not None, "the first range is not shared"
            caps = [_roundest_mib(limit), _roundest_mib(tail)]
        else:
            caps.insert(0, _roundest_mib(limit))
    if caps:
        return replace(settings, bucket_cap_mb_list=tuple(caps))
    assert tail is not None, "without ranges the defaults do"
    return replace(settings, bucket_cap_mb=_roundest_mib(tail))


def _roundest_mib(limit: _Range) -> float:
    """Return a cap in this range, in MiB, with as few digits as possible; DDP rounds down to bytes."""
    if limit.high is None:
        return float(limit.low // MIB + 1)
    for digits in range(7):
        cap = round(limit.high * 10**digits // MIB / 10**digits, digits)
        if limit.takes(int(cap * MIB)):
            return float(cap)
    return limit.high / MIB
