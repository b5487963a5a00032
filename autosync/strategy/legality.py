"""Checks whether a strategy is legal for a model on a cluster, and finds the rules that it breaks.

`problems` finds all mistakes at once and names the place of each in the strategy (`messages[2].synchroniser.server`),
so that errors can name the line of a file. There are five groups of rules: on the cut of variables, on shares of the
batch, on stages, on the distribution of parts over messages, and on what a message's synchroniser and codec need of its
parts, the optimizer and the backend.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from autosync.errors import DoesNotApplyError, Path, Problem, did_you_mean
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.backends import BACKENDS
from autosync.strategy.codecs import Cast, PowerSGD, TopK
from autosync.strategy.parts import Part, Partition
from autosync.strategy.representation import Message, Strategy, all_parts
from autosync.strategy.shares import are_even, share_problems
from autosync.strategy.stage_rules import stage_problems
from autosync.strategy.synchronisers.rules import ALONE, PLACE, Finding, MessageFacts

MAX_PARTS = 4096
MAX_SLICES = 65_536
"""The most slices into which a model's bytes may be cut, because a plan has operations for each slice."""

TOGETHER = "updates all of them together"
UNTRIED = "was not tried for that (profile the model again)"
SUMMABLE_ONLY = "only a codec whose results can be summed: cast"


def check(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> None:
    """Raise DoesNotApplyError with every rule that a strategy breaks, if it is not legal."""
    found = problems(strategy, model, cluster)
    if found:
        raise DoesNotApplyError(found)


def problems(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> list[Problem]:
    """Return every rule that a strategy breaks for this model on this cluster; none if it is legal."""
    cut = list(_partition_problems(strategy, model))
    if cut:
        return cut
    parts = all_parts(strategy, model)
    found = [*_overlap_problems(strategy, model), *_share_problems(strategy, model, cluster)]
    found += [*stage_problems(strategy, model, cluster), *_batching_problems(strategy, model, cluster)]
    found += _distribution_problems(strategy, parts)
    rules = _Rules(model, cluster)
    for position, message in enumerate(strategy.messages):
        known = [parts[name] for name in message.parts if name in parts]
        if known:
            found.extend(rules.problems(message, known, ("messages", position)))
    return found


def smallest_slice_bytes(model: ModelSpec) -> int:
    """Return the smallest slice size that any message of the model may have."""
    return -(-model.num_bytes // MAX_SLICES)


def message_problems(
    message: Message, parts: Sequence[Part], model: ModelSpec, cluster: ClusterSpec, path: Path = ()
) -> list[Problem]:
    """Return every rule that one message with these parts breaks by itself."""
    return list(_Rules(model, cluster).problems(message, parts, path))


def _overlap_problems(strategy: Strategy, model: ModelSpec) -> Iterator[Problem]:
    if strategy.overlap == "forward" and not model.optimizer.updates_apart:
        rule = (
            f"messages are updated one by one, which needs an optimizer that updates each variable by itself; "
            f"{model.optimizer.name} {TOGETHER if model.optimizer.per_variable is False else UNTRIED}"
        )
        yield Problem(what="overlap forward", rule=rule, path=("overlap",))


def _batching_problems(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Iterator[Problem]:
    batching, graphs = strategy.batching, model.graphs
    if graphs is not None and not are_even(strategy.shares):
        rule = "a model of graphs has even shares; examples are dealt by cost instead"
        yield Problem(what="uneven shares", rule=rule, path=("shares",))
    if batching is None:
        return
    if graphs is None:
        rule = f"it is for models of vertex functions, as profiled; {model.name} is none"
        yield Problem(what="a batching", rule=rule, path=("batching",))
        return
    if strategy.stages:
        yield Problem(what="a batching with stages", rule="graphs do not pass through stages", path=("batching",))
    if graphs.seconds_of(batching) is None:
        known = "; ".join(one.name for one in graphs.policies)
        yield Problem(what=f"the policy {batching.order}", rule=f"the profile's: {known}", path=("batching", "order"))
    if batching.dealing == "cost" and not graphs.knows_dealing:
        rule = graphs.undealt or "the profile did not compare deals"
        yield Problem(what="examples dealt by cost", rule=rule, path=("batching", "dealing"))
    if batching.dealing == "cost" and cluster.num_workers > 1:
        for position, message in enumerate(strategy.messages):
            if message.synchroniser.trains_apart:
                what = f"{message.synchroniser.kind} with examples dealt by cost"
                yield Problem(what=what, rule=ALONE, path=("messages", position, "synchroniser"))


def _share_problems(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Iterator[Problem]:
    if not strategy.shares:
        return
    yield from share_problems(strategy.shares, model, cluster)
    if not are_even(strategy.shares):
        for position, message in enumerate(strategy.messages):
            rule = message.synchroniser.refuses_shares
            if rule:
                what = f"{message.synchroniser.kind} with uneven shares"
                yield Problem(what=what, rule=rule, path=("messages", position, "synchroniser"))


def _partition_problems(strategy: Strategy, model: ModelSpec) -> Iterator[Problem]:
    variables = {variable.name: variable for variable in model.variables}
    for name, partition in strategy.partitions.items():
        path: Path = ("partitions", name)
        variable = variables.get(name)
        if variable is None:
            yield _unknown(f"unknown variable {name!r}", name, list(variables), path)
        else:
            yield from _cut_problems(variable, partition, model, path)


def _cut_problems(variable: Variable, partition: Partition, model: ModelSpec, path: Path) -> Iterator[Problem]:
    if not variable.shape or partition.axis >= len(variable.shape):
        axes = f"0 to {len(variable.shape) - 1}" if variable.shape else "none, it is a scalar"
        yield Problem(
            what=f"{variable.name} has no axis {partition.axis}", rule=f"its axes: {axes}", path=(*path, "axis")
        )
        return
    size = variable.shape[partition.axis]
    if sum(partition.sizes) != size:
        what = f"the parts of {variable.name} make {sum(partition.sizes)} along axis {partition.axis}"
        yield Problem(what=what, rule=f"they must make its size there, {size}", path=(*path, "sizes"))
    if len(partition.sizes) > MAX_PARTS:
        yield Problem(what=f"{len(partition.sizes)} parts", rule=f"at most {MAX_PARTS}", path=(*path, "sizes"))
    if len(partition.sizes) > 1 and not model.optimizer.elementwise:
        rule = f"parts are updated apart, which needs an elementwise optimizer; {model.optimizer.name} is none"
        yield Problem(what=f"{variable.name} is partitioned", rule=rule, path=path)


def _distribution_problems(strategy: Strategy, parts: Mapping[str, Part]) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for position, message in enumerate(strategy.messages):
        for index, name in enumerate(message.parts):
            path: Path = ("messages", position, "parts", index)
            if name not in parts:
                yield _unknown(f"unknown part {name!r}", name, list(parts), path)
            elif name in seen:
                yield Problem(
                    what=f"{name} is in messages[{seen[name]}] already", rule="each part is in one message", path=path
                )
            seen.setdefault(name, position)
    missing = [name for name in parts if name not in seen]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        what = f"{', '.join(missing[:3])}{more} in no message"
        yield Problem(what=what, rule="each part is in one message", path=("messages",))


def _unknown(what: str, name: str, known: Sequence[str], path: Path) -> Problem:
    listed = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    return Problem(what=what, rule=f"known: {listed}", path=path, hint=did_you_mean(name, known))


class _Rules:
    """The rules for single messages; facts of the model, the cluster and the backend are looked up once."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        self.model = model
        self.cluster = cluster
        self.backend = BACKENDS[cluster.backend]
        self.smallest_slice_bytes = smallest_slice_bytes(model)
        self.nodes = {node.name: node for node in cluster.nodes}

    def problems(self, message: Message, parts: Sequence[Part], path: Path) -> Iterator[Problem]:
        """Yield every rule that this message breaks."""
        groups = (
            self._form(parts),
            self._synchroniser(message, parts),
            self._codec(message, parts),
            self._transport(message),
        )
        for place, what, rule in itertools.chain.from_iterable(groups):
            yield Problem(what=what, rule=rule, path=(*path, *place))

    def _form(self, parts: Sequence[Part]) -> Iterator[Finding]:
        dtypes = {part.variable.dtype for part in parts}
        if len(dtypes) > 1:
            yield ("parts",), f"parts of {' and '.join(sorted(dtypes))}", "a message has one dtype"

    def _synchroniser(self, message: Message, parts: Sequence[Part]) -> Iterator[Finding]:
        facts = MessageFacts(
            parts=parts,
            is_sliced=message.slice_bytes is not None,
            is_encoded=message.codec is not None,
            model=self.model,
            cluster=self.cluster,
            backend=self.backend,
            nodes=self.nodes,
        )
        yield from message.synchroniser.problems(facts)
        if message.synchroniser.trains_apart and self.model.weighs and self.cluster.num_workers > 1:
            yield PLACE, f"{message.synchroniser.kind} in a task that weighs its batches", ALONE

    def _codec(self, message: Message, parts: Sequence[Part]) -> Iterator[Finding]:
        codec = message.codec
        if codec is None:
            return
        place: Path = ("codec",)
        synchroniser = message.synchroniser
        if not synchroniser.takes_codecs:
            yield place, f"{codec.kind} with {synchroniser.title}", "codecs encode dense gradients"
            return
        if self.model.loss_scaling:
            rule = "scaled gradients overflow now and then, and no codec takes infinities"
            yield place, f"{codec.kind} in a task that scales its loss", rule
        if isinstance(codec, TopK) and codec.momentum and self.cluster.num_workers == 1:
            yield place, f"{codec.kind} with momentum on one worker", "its momentum would be lost: nothing is sent"
        if not isinstance(codec, Cast) and synchroniser.passes_sums_on:
            yield place, f"{codec.kind} where sums are passed on", SUMMABLE_ONLY
        route = synchroniser.route
        if not isinstance(codec, Cast | PowerSGD) and route not in (None, "native", "ring"):
            rule = "what cannot be summed is gathered: native or ring"
            yield ("synchroniser", "topology"), f"{route} with {codec.kind}", rule
        if isinstance(codec, Cast) and parts[0].variable.dtype not in ("float32", "float64"):
            yield place, f"{parts[0].variable.dtype} cast to {codec.dtype}", "a cast must make numbers smaller"
        if isinstance(codec, PowerSGD):
            yield from self._power_sgd(codec, message, parts, place)

    def _power_sgd(self, codec: PowerSGD, message: Message, parts: Sequence[Part], place: Path) -> Iterator[Finding]:
        if not message.synchroniser.sums_everywhere:
            yield place, f"power_sgd with {message.synchroniser.kind}", "its factors are summed by all: all_reduce only"
        if message.slice_bytes is not None:
            yield ("slice_bytes",), "power_sgd in slices", "a factor needs its whole matrix"
        for part in parts:
            if part.smaller_side <= codec.rank:
                yield place, f"rank {codec.rank} for {part.name} of shape {list(part.shape)}", "rank below both sides"

    def _transport(self, message: Message) -> Iterator[Finding]:
        backend = self.backend
        synchroniser = message.synchroniser
        if synchroniser.needs_own_rounds and not backend.own_rounds:
            rule = "no tags: native, or levels of an all-reduce"
            yield ("synchroniser", "topology"), f"{synchroniser.route} on {backend.name}", rule
        if message.priority and not backend.overtakes:
            rule = "it runs a communicator in one static order: priority 0"
            yield ("priority",), f"priority {message.priority} on {backend.name}", rule
        if message.lane >= backend.max_lanes:
            yield ("lane",), f"lane {message.lane} on {backend.name}", f"0 to {backend.max_lanes - 1}"
        if message.slice_bytes is not None and message.slice_bytes < self.smallest_slice_bytes:
            rule = f"{self.smallest_slice_bytes} B or more: a model of {self.model.num_bytes} B in {MAX_SLICES} slices"
            yield ("slice_bytes",), f"slices of {message.slice_bytes} B", rule
