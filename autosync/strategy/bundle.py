"""The bundle: a strategy with the model and the cluster that it was made for, as a tuning run writes it.

A strategy alone says neither which model its variables belong to nor how fast the nodes' links were. A bundle does, so
that a program that runs it can refuse another model or cluster and name the difference.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from autosync import documents, jsonio
from autosync.documents import STRICT, Document
from autosync.errors import DocumentError, DoesNotApplyError, InputError, Problem, first_problems
from autosync.specs.cluster import ClusterSpec, Node, symmetry_classes
from autosync.specs.cluster_file import dump_cluster, parse_cluster
from autosync.specs.model import SCHEMA_KIND as MODEL_KIND
from autosync.specs.model import SCHEMA_VERSION as MODEL_VERSION
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import dump_model, format_model
from autosync.specs.rank_variables import BUNDLE_VARIABLE
from autosync.strategy.canonical import strategy_id
from autosync.strategy.files import (
    BUNDLE_KIND,
    BUNDLE_VERSION,
    check_legal,
    dump_strategy,
    is_strategy,
    parse_strategy,
    part_of,
)
from autosync.strategy.representation import Strategy

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _BundleEntry:
    """The fields of a bundle file; strategy, cluster and model are whole files within it, with their headers."""

    __pydantic_config__ = STRICT

    strategy_id: str
    plan_id: str
    strategy: object
    cluster: object
    model: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A strategy, the model and cluster that it was made for, and its strategy id and plan id for these."""

    strategy: Strategy
    model: ModelSpec
    cluster: ClusterSpec
    strategy_id: str
    plan_id: str

    def check(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        """Raise DoesNotApplyError if the model or cluster differs from the bundle's in facts that plans depend on."""
        found = [*_model_differences(self.model, model), *_cluster_differences(self.cluster, cluster)]
        if found:
            raise DoesNotApplyError(first_problems(found))


def load_bundle(path: Path | str) -> Bundle:
    """Load a bundle from a file; raise DocumentError if its strategy was changed by hand, as its ids would be wrong."""
    document = documents.read_document(path)
    if is_strategy(document):
        rule = "a bundle is a strategy with its model and cluster"
        hint = "autosync strategy build PRESET MODEL --cluster C --bundle -o B.yaml writes one, as autosync tune does"
        raise DocumentError([Problem(what="is a strategy, not a bundle", rule=rule, hint=hint, file=document.file)])
    entry = documents.parse(document, kind=BUNDLE_KIND, version=BUNDLE_VERSION, into=_BundleEntry)
    parts = {key: part_of(document, key) for key in ("strategy", "cluster", "model")}
    problems: list[Problem] = []
    strategy = _collected(parse_strategy, parts["strategy"], problems)
    cluster = _collected(parse_cluster, parts["cluster"], problems)
    model = _collected(_parse_model, parts["model"], problems)
    if strategy is None or cluster is None or model is None:
        raise DocumentError(first_problems(problems))
    check_legal(strategy, parts["strategy"], model, cluster)
    actual_id = strategy_id(strategy, model, cluster)
    if actual_id != entry.strategy_id:
        what = f"the strategy's id is {actual_id}, not {entry.strategy_id!r}"
        rule = "a bundle is not changed by hand"
        hint = "put the strategy into a file of its own to change it"
        raise DocumentError([document.locate(Problem(what=what, rule=rule, hint=hint, path=("strategy_id",)))])
    return Bundle(strategy=strategy, model=model, cluster=cluster, strategy_id=actual_id, plan_id=entry.plan_id)


def bundle_at_hand() -> str:
    """Return the path of the bundle that the environment names."""
    path = os.environ.get(BUNDLE_VARIABLE)
    if not path:
        raise InputError(
            f"no bundle was given, and {BUNDLE_VARIABLE} is not set",
            rule="parallelize(model, optimizer, bundle), or the bundle's file in the environment",
            hint="autosync launch BUNDLE -- SCRIPT sets it",
        )
    return path


def dump_bundle(bundle: Bundle) -> dict[str, Any]:
    """Return the fields of a bundle file."""
    return {**_head(bundle), "model": dump_model(bundle.model)}


def save_bundle(path: Path | str, bundle: Bundle) -> None:
    """Write a bundle as YAML, or as JSON if the file's name ends in `.json`."""
    if Path(path).suffix.lower() == ".json":
        documents.write(path, dump_bundle(bundle))
        return
    # A model has hundreds of variables; the format of model files has one line for each.
    model = "".join(f"  {line}\n" for line in format_model(bundle.model).splitlines())
    jsonio.write_text(Path(path), f"{documents.format_yaml(_head(bundle))}model:\n{model}")


def _head(bundle: Bundle) -> dict[str, Any]:
    return {
        "schema": f"autosync.{BUNDLE_KIND}/{BUNDLE_VERSION}",
        "strategy_id": bundle.strategy_id,
        "plan_id": bundle.plan_id,
        "strategy": dump_strategy(bundle.strategy),
        "cluster": dump_cluster(bundle.cluster),
    }


def _parse_model(document: Document) -> ModelSpec:
    return documents.parse(document, kind=MODEL_KIND, version=MODEL_VERSION, into=ModelSpec)


def _collected(parse: Callable[[Document], T], document: Document, problems: list[Problem]) -> T | None:
    try:
        return parse(document)
    except DocumentError as error:
        problems.extend(error.problems)
        return None


def _model_differences(recorded: ModelSpec, given: ModelSpec) -> Iterator[Problem]:
    """Yield the differences between two models that change the fingerprint."""
    if recorded.fingerprint() == given.fingerprint():
        return
    for field in ("optimizer", "accumulation_steps", "clip_norm", "loss_scaling", "weighs"):
        yield from _difference(f"the model's {field}", getattr(recorded, field), getattr(given, field))
    theirs = {variable.name: variable for variable in recorded.variables}
    ours = {variable.name: variable for variable in given.variables}
    yield from _missing_and_extra("variable", theirs, ours)
    for name, variable in theirs.items():
        if name in ours:
            yield from _difference(f"the variable {name}", variable, ours[name])
    if recorded.variables != given.variables and sorted(theirs.items(), key=_name) == sorted(ours.items(), key=_name):
        yield _problem("the variables are listed in another order", "the order of the bundle's model")


def _cluster_differences(recorded: ClusterSpec, given: ClusterSpec) -> Iterator[Problem]:
    """Yield the differences between two clusters that change the fingerprint."""
    if recorded.fingerprint() == given.fingerprint():
        return
    yield from _difference("the cluster's backend", recorded.backend, given.backend)
    pods, ours_in = _pods(recorded), _pods(given)
    yield from _difference("which racks stand in pods", pods, ours_in)
    theirs = {node.name: _shape(node) for node in recorded.nodes}
    ours = {node.name: _shape(node) for node in given.nodes}
    yield from _missing_and_extra("node", theirs, ours)
    for name, shape in theirs.items():
        if name in ours:
            yield from _difference(f"the node {name}", shape, ours[name])
    if theirs == ours and list(theirs) != list(ours):
        yield _problem(f"the nodes are in the order {', '.join(ours)}", f"the bundle's order: {', '.join(theirs)}")
    elif list(theirs) == list(ours):
        yield from _difference("which nodes are alike", _classes(recorded), _classes(given))


def _shape(node: Node) -> dict[str, Any]:
    return {"role": node.role, "devices": node.devices, "rack": node.rack}


def _pods(cluster: ClusterSpec) -> dict[str, str]:
    return {rack.name: rack.rack for rack in cluster.racks if rack.rack is not None}


def _classes(cluster: ClusterSpec) -> list[list[str]]:
    return [[cluster.nodes[p].name for p in positions] for positions in symmetry_classes(cluster) if len(positions) > 1]


def _name(item: tuple[str, object]) -> str:
    return item[0]


def _missing_and_extra(what: str, theirs: Mapping[str, object], ours: Mapping[str, object]) -> Iterator[Problem]:
    for name in theirs:
        if name not in ours:
            yield _problem(f"the {what} {name} is missing", f"the bundle was made with {name}")
    for name in ours:
        if name not in theirs:
            yield _problem(f"the {what} {name} is new", f"the bundle was made without {name}")


def _difference(what: str, recorded: object, given: object) -> Iterator[Problem]:
    """Yield the differences between two values: field by field if they have fields, none if they are equal."""
    if recorded == given:
        return
    theirs, ours = _fields(recorded), _fields(given)
    if theirs.keys() == ours.keys() and theirs:
        for key, value in theirs.items():
            yield from _difference(f"{what}, {key},", value, ours[key])
    else:
        yield _problem(f"{what.removesuffix(',')} is {_worded(given)}", f"the bundle was made for {_worded(recorded)}")


def _fields(value: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return value if isinstance(value, dict) else {}


def _worded(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case tuple() | list():
            return f"[{', '.join(map(_worded, value))}]"
    return str(value)


def _problem(what: str, rule: str) -> Problem:
    return Problem(what=what, rule=rule, hint="tune again, or run the bundle where it was made for")
