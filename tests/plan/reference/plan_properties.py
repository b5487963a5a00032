"""Properties that every plan must have, tried on random strategies of random models on random clusters.

Strategies are sampled, mutated and crossed; a share of the spaces is exact alone, others allow lossy or stale
strategies or both. A failure has its strategy, model and cluster, ready to be read again.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from autosync import documents
from autosync.documents import Document
from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.plan.reference import Outcome, Workload, interpret, meaning, single_process
from autosync.plan.reference.optimizers import LEARNING_RATE
from autosync.plan.reference.workload import Array, Gradient
from autosync.plan.types import Plan
from autosync.specs import model as model_schema
from autosync.specs.cluster import ClusterSpec, symmetry_classes
from autosync.specs.cluster_file import dump_cluster, parse_cluster
from autosync.specs.model import ModelSpec, Variable
from autosync.specs.model_file import dump_model
from autosync.strategy import legality
from autosync.strategy.canonical import strategy_id
from autosync.strategy.codecs import Codec, Int8, PowerSGD, Sign, TopK
from autosync.strategy.files import dump_strategy, parse_strategy
from autosync.strategy.representation import Message, Strategy, all_parts
from autosync.strategy.space import Limits, Space
from autosync.strategy.space.limits import ALL_CODECS

sys.path.append(str(Path(__file__).parents[2]))
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.strategy.synchronisers.sharded import Sharded
from tests.helpers.random_specs import random_cluster, random_model
from tests.plan.reference.plan_bytes import check_bytes, hold

CODECS: tuple[Codec, ...] = (*ALL_CODECS, Int8(block=16), TopK(ratio=0.3), PowerSGD(rank=1), Sign(error_feedback=False))
WIDE = Limits(
    codecs=CODECS,
    slice_bytes=(1024, 2048, 4096, 65536),
    staleness=(1, 2),
    periods=(2, 3),
    max_parts=6,
    max_priorities=8,
)
ALLOWED = (((), 0.3), (("lossy",), 0.3), (("stale",), 0.2), (("lossy", "stale"), 0.2))
STRATEGIES_A_SPACE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One strategy for a model on a cluster; all chance in checking it comes from the seed."""

    model: ModelSpec
    cluster: ClusterSpec
    strategy: Strategy
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder(Workload):
    """A workload that keeps what it made: dense gradients by variable, rank and step."""

    made: dict[tuple[str, int, int], Array] = field(default_factory=dict, compare=False)

    def gradient(self, variable: Variable, rank: int, step: int, value: Array) -> Gradient:
        """As the workload has it."""
        found = Workload.gradient(self, variable, rank, step, value)
        self.made[variable.name, rank, step] = found.dense
        return found


def draw(rng: random.Random, count: int) -> Iterator[Case]:
    """So many strategies: of each space a sample, another, a mutant of the first and a child of both."""
    drawn = 0
    while drawn < count:
        model, cluster = random_model(rng), random_cluster(rng)
        allowed = rng.choices([a for a, _ in ALLOWED], [weight for _, weight in ALLOWED])[0]
        space = Space(model=model, cluster=cluster, limits=replace(WIDE, allow=allowed))
        first, second = space.sample(rng), space.sample(rng)
        mutant = space.mutate(space.mutate(first, rng), rng)
        for strategy in (first, second, mutant, space.crossover(first, second, rng))[: count - drawn]:
            yield Case(model=model, cluster=cluster, strategy=strategy, seed=rng.randrange(2**32))
            drawn += 1


def check(case: Case) -> Iterator[str]:
    """The names of the properties that were checked and hold, in turn; `BrokenError` or another error where one does
    not.
    """
    yield from check_form(case)
    yield from check_identity(case)
    yield from check_run(case)


def check_form(case: Case) -> Iterator[str]:
    """Legal, and the same after writing and reading."""
    found = legality.problems(case.strategy, case.model, case.cluster)
    hold(not found, f"not legal: {found[:3]}")
    yield "legal"
    fields = dump_strategy(case.strategy)
    yaml = documents.parse_document(documents.format_yaml(fields), file="case.yaml")
    hold(parse_strategy(yaml) == case.strategy, "another strategy after YAML")
    yield "yaml"
    as_json = documents.parse_document(documents.format_json(fields), file="case.json")
    hold(parse_strategy(as_json) == case.strategy, "another strategy after JSON")
    yield "json"


def check_identity(case: Case) -> Iterator[str]:
    """What has no meaning makes no difference to ids and plans."""
    rng = random.Random(case.seed)
    fields = _shuffled_fields(dump_strategy(shuffled(case.strategy, rng)), rng)
    other = parse_strategy(_document(fields))
    known = strategy_id(case.strategy, case.model, case.cluster)
    hold(strategy_id(other, case.model, case.cluster) == known, "another strategy_id after reordering")
    yield "strategy_id"
    plan = lower(case.strategy, case.model, case.cluster)
    hold(lower(other, case.model, case.cluster) == plan, "another plan after reordering")
    yield "one plan"
    renamed = lower(exchanged(case.strategy, case.cluster, rng), case.model, case.cluster)
    same = plan_id(renamed, case.cluster) == plan_id(plan, case.cluster)
    hold(same, "another plan_id after exchanging nodes that are declared alike")
    yield "plan_id"


def check_run(case: Case) -> Iterator[str]:
    """The plan through the reference, in two orders."""
    plan = lower(case.strategy, case.model, case.cluster)
    rng = random.Random(case.seed)
    num_steps = rng.choice((3, 4, 5) if case.strategy.is_exact else (4, 5, 6))
    workload = Recorder(model=case.model, seed=case.seed)
    outcomes = [interpret(plan, workload, num_steps=num_steps, rng=random.Random(rng.random())) for _ in range(2)]
    yield "no deadlock"
    _same_in_any_order(outcomes)
    yield "one result in any order"
    _replicas_agree(case.strategy, outcomes[0], num_steps)
    yield "replicas agree"
    yield from check_bytes(plan, case.cluster, outcomes[0].sent)
    if "lossy" in case.strategy.classes:
        yield from _check_lossy(case, plan, workload, outcomes[0], num_steps)
    else:
        yield from _check_meaning(case, workload, outcomes[0], num_steps)


def _same_in_any_order(outcomes: Sequence[Outcome]) -> None:
    first, second = (outcome.parameters for outcome in outcomes)
    for rank, (one, other) in enumerate(zip(first, second, strict=True)):
        for name, value in one.items():
            hold(np.array_equal(value, other[name]), f"rank {rank}: {name} depends on the order, or is NaN")


def _replicas_agree(strategy: Strategy, outcome: Outcome, num_steps: int) -> None:
    apart = {
        name.partition("[")[0]
        for message in strategy.messages
        for name in message.parts
        if isinstance(message.synchroniser, Periodic) and num_steps % message.synchroniser.every
    }
    for rank, parameters in enumerate(outcome.parameters):
        for name, value in parameters.items():
            hold(bool(np.isfinite(value).all()), f"rank {rank}: {name} is not finite")
            same = name in apart or np.array_equal(value, outcome.parameters[0][name])
            hold(same, f"rank {rank}: {name} is not what rank 0 has")


def _check_meaning(case: Case, workload: Workload, outcome: Outcome, num_steps: int) -> Iterator[str]:
    num_workers = case.cluster.num_workers
    expected = meaning(case.strategy, workload, num_workers=num_workers, num_steps=num_steps)
    _near(outcome.parameters, expected, 1e-9, "not what the strategy means")
    yield "meaning"
    if case.strategy.is_exact:
        shares = case.strategy.shares
        single = single_process(workload, num_workers=num_workers, num_steps=num_steps, shares=shares)
        _near(outcome.parameters, [single] * num_workers, 1e-9, "not what one process makes")
        yield "exact"


def _near(
    found: Sequence[Mapping[str, Array]], expected: Sequence[Mapping[str, Array]], most: float, what: str
) -> None:
    for rank, (one, other) in enumerate(zip(found, expected, strict=True)):
        for name, value in one.items():
            error = float(np.linalg.norm(value - other[name]))
            scale = max(float(np.linalg.norm(other[name])), 1e-3)
            hold(error <= most * scale, f"rank {rank}: {name} is {what}: {error:.3g} of {scale:.3g}")


def _check_lossy(case: Case, plan: Plan, workload: Recorder, outcome: Outcome, num_steps: int) -> Iterator[str]:
    num_workers = case.cluster.num_workers
    optimizer = case.model.optimizer
    if (optimizer.name, optimizer.state_slots, case.model.clip_norm) == ("SGD", 0, None):
        for message in case.strategy.messages:
            if message.codec is not None and message.codec.error_feedback and num_workers > 1:
                _nothing_is_lost(case, plan, workload, outcome, message)
                yield "error feedback"
    if optimizer.sparse and optimizer.state_slots:
        # A lazy optimizer leaves alone what has no gradient at all; what a codec makes of a zero need not be one.
        return
    plain = replace(case.strategy, messages=tuple(_with_faithful_codec(m, case) for m in case.strategy.messages))
    found = interpret(
        lower(plain, case.model, case.cluster), workload, num_steps=num_steps, rng=random.Random(case.seed)
    )
    expected = meaning(case.strategy, workload, num_workers=num_workers, num_steps=num_steps)
    _near(found.parameters, expected, 1e-5, "far from exact under codecs that lose nothing")
    yield "faithful codecs"


def _nothing_is_lost(case: Case, plan: Plan, workload: Recorder, outcome: Outcome, message: Message) -> None:
    """All updates together are all gradients but what the residuals hold back."""
    if isinstance(message.synchroniser, ParameterServer) and message.synchroniser.staleness:
        return
    num_workers = case.cluster.num_workers
    names = [str(part.name) for part in plan.parts]
    for name in (name for name in message.parts if name in names):
        part = plan.parts[names.index(name)]
        window = (slice(None),) * part.axis + (slice(part.begin, part.end),) if part.shape else ...
        whole = sum(made for (variable, _, _), made in workload.made.items() if variable == part.variable.name)
        total = np.asarray(whole)[window].reshape(-1) / num_workers
        for (_, index), residual in outcome.residuals.items():
            region = plan.regions[index]
            if plan.parts[region.part] == part:
                total[region.start : region.stop] -= residual / num_workers
        initial = workload.initial(part.variable)[window]
        moved = (initial - outcome.parameters[0][part.variable.name][window]).reshape(-1) / LEARNING_RATE
        close = np.allclose(moved, total, rtol=1e-9, atol=1e-9)
        hold(close, f"{name}: updates and residuals do not make up the gradients")


def _with_faithful_codec(message: Message, case: Case) -> Message:
    """The same with a codec of its kind that loses nothing, where there is one: PowerSGD of full rank, top-k of all."""
    if message.codec is None:
        return message
    if isinstance(message.codec, PowerSGD):
        parts = [all_parts(case.strategy, case.model)[name] for name in message.parts]
        sides = {part.smaller_side for part in parts}
        # It looks where the last gradient was. Those of a table change their rank from step to step, so some of the
        # next is missed.
        if len(sides) == 1 and all(part.variable.kind != "embedding" for part in parts):
            return replace(message, codec=replace(message.codec, rank=sides.pop()))
    synchroniser = message.synchroniser
    sums_on_the_way = isinstance(synchroniser, Sharded) or (
        synchroniser.hierarchical or synchroniser.topology not in ("native", "ring")
        if isinstance(synchroniser, AllReduce)
        else isinstance(synchroniser, ParameterServer) and synchroniser.local_proxy
    )
    return replace(message, codec=None if sums_on_the_way else TopK(ratio=1.0))


def shuffled(strategy: Strategy, rng: random.Random) -> Strategy:
    """Messages, parts and partitions in another order."""
    messages = [replace(message, parts=tuple(_shuffled(message.parts, rng))) for message in strategy.messages]
    partitions = dict(_shuffled(list(strategy.partitions.items()), rng))
    return replace(strategy, name="another", partitions=partitions, messages=tuple(_shuffled(messages, rng)))


def exchanged(strategy: Strategy, cluster: ClusterSpec, rng: random.Random) -> Strategy:
    """Nodes that are declared alike in each other's places. Trees name ranks, so with them all stay where they are."""
    if any(message.synchroniser.route == "trees" for message in strategy.messages):
        return strategy
    other: dict[str, str] = {}
    for positions in symmetry_classes(cluster):
        names = [cluster.nodes[position].name for position in positions]
        other.update(zip(names, _shuffled(names, rng), strict=True))
    messages = [
        replace(message, synchroniser=replace(message.synchroniser, server=other[message.synchroniser.server]))
        if isinstance(message.synchroniser, ParameterServer)
        else message
        for message in strategy.messages
    ]
    return replace(strategy, messages=tuple(messages))


def _shuffled(items: Sequence[Any], rng: random.Random) -> list[Any]:
    return rng.sample(items, len(items))


def _shuffled_fields(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        return {key: _shuffled_fields(value[key], rng) for key in _shuffled(list(value), rng)}
    return [_shuffled_fields(item, rng) for item in value] if isinstance(value, list) else value


def _document(fields: Any) -> Document:
    return Document(file="case", value=fields, lines={})


def dump_case(case: Case) -> dict[str, Any]:
    """All that is needed to run a case again."""
    return {
        "seed": case.seed,
        "strategy": dump_strategy(case.strategy),
        "model": dump_model(case.model),
        "cluster": dump_cluster(case.cluster),
    }


def read_case(fields: Mapping[str, Any]) -> Case:
    """A case that was dumped."""
    kind, version = model_schema.SCHEMA_KIND, model_schema.SCHEMA_VERSION
    return Case(
        model=documents.parse(_document(fields["model"]), kind=kind, version=version, into=ModelSpec),
        cluster=parse_cluster(_document(fields["cluster"])),
        strategy=parse_strategy(_document(fields["strategy"])),
        seed=fields["seed"],
    )


def try_all(cases: Iterator[Case]) -> dict[str, Any]:
    """Check cases; what came of it as one document."""
    began = time.perf_counter()
    held: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    count = 0
    for case in cases:
        count += 1
        classes["+".join(sorted(case.strategy.classes))] += 1
        try:
            held.update(check(case))
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is a failure of the plan, to be reported with its case
            failures.append({"why": f"{type(error).__name__}: {error}", **dump_case(case)})
    return {
        "count": count,
        "failed": len(failures),
        "seconds": round(time.perf_counter() - began, 3),
        "classes": dict(classes),
        "held": dict(held),
        "failures": failures[:20],
    }
