"""Which strategies are legal for a model on a cluster, and which rule an illegal one breaks.

`problems` finds all mistakes at once and names each place in the strategy (`messages[2].synchroniser.server`), so that
a file's line can be told. The rules come in three groups: the cut of the variables, the distribution of parts over
messages, and what a message's synchroniser and codec need of its parts, of the optimizer and of the backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autosync.errors import DoesNotApplyError, Path, Problem, did_you_mean
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.backends import BACKENDS, Backend
from autosync.strategy.parts import Part, parts_of
from autosync.strategy.representation import (
    AllReduce,
    Cast,
    Message,
    ParameterServer,
    Partition,
    Periodic,
    PowerSGD,
    Sharded,
    SparseGather,
    Strategy,
    SufficientFactors,
)

MAX_PARTS = 4096

SUMMABLE_ONLY = "only a codec whose results can be summed: cast"


def check(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> None:
    """Refuse a strategy that is not legal, with every rule it breaks."""
    found = problems(strategy, model, cluster)
    if found:
        raise DoesNotApplyError(found)


def problems(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> list[Problem]:
    """Every rule that a strategy breaks for this model on this cluster; none if it is legal."""
    cut = list(_partition_problems(strategy, model))
    if cut:
        return cut
    parts = {
        str(part.name): part
        for variable in model.variables
        for part in parts_of(variable, strategy.partitions.get(variable.name))
    }
    found = list(_distribution_problems(strategy, parts))
    backend = BACKENDS[cluster.backend]
    for position, message in enumerate(strategy.messages):
        known = [parts[name] for name in message.parts if name in parts]
        if known:
            rules = _MessageRules(message, known, model, cluster, backend)
            found.extend(rules.problems(("messages", position)))
    return found


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


class _MessageRules:
    """The rules of one message."""

    def __init__(
        self, message: Message, parts: list[Part], model: ModelSpec, cluster: ClusterSpec, backend: Backend
    ) -> None:
        self.message = message
        self.parts = parts
        self.model = model
        self.cluster = cluster
        self.backend = backend
        self.num_workers = cluster.num_workers

    def problems(self, path: Path) -> Iterator[Problem]:
        """Every rule this message breaks."""
        for place, what, rule in (*self._form(), *self._synchroniser(), *self._codec(), *self._transport()):
            yield Problem(what=what, rule=rule, path=(*path, *place))

    def _form(self) -> Iterator[tuple[Path, str, str]]:
        dtypes = sorted({part.variable.dtype for part in self.parts})
        if len(dtypes) > 1:
            yield ("parts",), f"parts of {' and '.join(dtypes)}", "a message has one dtype"

    def _synchroniser(self) -> Iterator[tuple[Path, str, str]]:
        place: Path = ("synchroniser",)
        match self.message.synchroniser:
            case ParameterServer() as server:
                yield from self._parameter_server(server, place)
            case Sharded() as sharded:
                yield from self._elementwise(place, "sharded updates")
                if sharded.topology == "halving_doubling" and self.num_workers & (self.num_workers - 1):
                    rule = "reduce-scatter by halving needs a power of two"
                    yield (*place, "topology"), f"halving_doubling on {self.num_workers} workers", rule
            case SparseGather():
                yield from self._rows(place)
            case SufficientFactors():
                yield from self._factors(place)
            case Periodic() as periodic:
                if (self.model.clip_norm or self.model.loss_scaling) and periodic.every > 1:
                    rule = "clipping and loss scaling need the gradients of all workers in every step"
                    yield place, "periodic averaging in a task that clips or scales", rule
            case AllReduce():
                pass

    def _parameter_server(self, server: ParameterServer, place: Path) -> Iterator[tuple[Path, str, str]]:
        names = [node.name for node in self.cluster.nodes]
        if server.server not in names:
            near = did_you_mean(server.server, names)
            rule = f"known: {', '.join(names)}" + (f"; {near}" if near else "")
            yield (*place, "server"), f"unknown node {server.server!r}", rule
        elif not self.backend.serves_without_device and self.cluster.nodes[names.index(server.server)].role == "server":
            yield (*place, "server"), f"{server.server} has no device", f"{self.backend.name} runs on devices only"
        if server.update == "server":
            yield from self._elementwise(place, "updates at a server")
        if server.sparse:
            yield from self._rows(place)
        if server.staleness and (self.model.clip_norm or self.model.loss_scaling):
            rule = "clipping and loss scaling need every gradient of the step before the first update"
            yield (*place, "staleness"), "staleness in a task that clips or scales", rule

    def _elementwise(self, place: Path, what: str) -> Iterator[tuple[Path, str, str]]:
        if not self.model.optimizer.elementwise:
            yield place, f"{what} with {self.model.optimizer.name}", "needs an elementwise optimizer"

    def _rows(self, place: Path) -> Iterator[tuple[Path, str, str]]:
        part = self.parts[0]
        if len(self.parts) > 1:
            yield ("parts",), "several parts travel as rows", "rows travel alone: one part in the message"
        if part.variable.kind != "embedding":
            yield place, f"{part.name} is {part.variable.kind}", "rows need an embedding"
        if not self.model.optimizer.sparse:
            yield place, f"rows with {self.model.optimizer.name}", "needs an optimizer that takes sparse gradients"
        if self.model.clip_norm or self.model.loss_scaling:
            yield place, "rows in a task that clips or scales", "clipping and scaling are for dense gradients"
        if self.message.slice_bytes is not None:
            yield ("slice_bytes",), "rows in slices", "rows are not sliced: their number is known at run time only"

    def _factors(self, place: Path) -> Iterator[tuple[Path, str, str]]:
        part = self.parts[0]
        if len(self.parts) > 1:
            yield ("parts",), "several parts travel as factors", "factors travel alone: one part in the message"
        if part.variable.kind != "linear":
            rule = "factors need a linear variable: a matrix that is used once a step and not tied"
            yield place, f"{part.name} is {part.variable.kind}", rule
        if self.model.accumulation_steps > 1:
            yield place, "factors with gradient accumulation", "factors of several microsteps do not add up"
        if self.message.slice_bytes is not None:
            yield ("slice_bytes",), "factors in slices", "factors are not sliced: both are needed to rebuild"

    def _codec(self) -> Iterator[tuple[Path, str, str]]:
        codec = self.message.codec
        if codec is None:
            return
        place: Path = ("codec",)
        synchroniser = self.message.synchroniser
        plain_server = isinstance(synchroniser, ParameterServer) and not synchroniser.sparse
        if not (plain_server or isinstance(synchroniser, AllReduce | Sharded)):
            kind = "sparse parameter_server" if isinstance(synchroniser, ParameterServer) else synchroniser.kind
            yield place, f"{codec.kind} with {kind}", "codecs encode dense gradients"
            return
        meets_within_node = getattr(synchroniser, "hierarchical", False) or getattr(synchroniser, "local_proxy", False)
        if not isinstance(codec, Cast) and (isinstance(synchroniser, Sharded) or meets_within_node):
            yield place, f"{codec.kind} where sums are passed on", SUMMABLE_ONLY
        topology = getattr(synchroniser, "topology", "native")
        if not isinstance(codec, Cast | PowerSGD) and topology not in ("native", "ring"):
            rule = "what cannot be summed is gathered: native or ring"
            yield ("synchroniser", "topology"), f"{topology} with {codec.kind}", rule
        if isinstance(codec, Cast) and self.parts[0].variable.dtype not in ("float32", "float64"):
            yield place, f"{self.parts[0].variable.dtype} cast to {codec.dtype}", "a cast must make numbers smaller"
        if isinstance(codec, PowerSGD):
            yield from self._power_sgd(codec, place)

    def _power_sgd(self, codec: PowerSGD, place: Path) -> Iterator[tuple[Path, str, str]]:
        if isinstance(self.message.synchroniser, ParameterServer):
            yield place, "power_sgd with parameter_server", "its factors are summed by all: all_reduce only"
        if self.message.slice_bytes is not None:
            yield ("slice_bytes",), "power_sgd in slices", "a factor needs its whole matrix"
        for part in self.parts:
            rows = part.shape[0] if part.shape else 1
            if min(rows, part.num_elements // rows) <= codec.rank:
                yield place, f"rank {codec.rank} for {part.name} of shape {list(part.shape)}", "rank below both sides"

    def _transport(self) -> Iterator[tuple[Path, str, str]]:
        topology = getattr(self.message.synchroniser, "topology", "native")
        if topology != "native" and not self.backend.own_rounds:
            yield ("synchroniser", "topology"), f"{topology} on {self.backend.name}", "native only: it has no tags"
        if self.message.priority and not self.backend.overtakes:
            rule = "it runs a communicator in one static order: priority 0"
            yield ("priority",), f"priority {self.message.priority} on {self.backend.name}", rule
        if self.message.lane >= self.backend.max_lanes:
            yield ("lane",), f"lane {self.message.lane} on {self.backend.name}", f"0 to {self.backend.max_lanes - 1}"
