"""Reads strategy files (YAML or JSON) into a `Strategy` and writes them.

Wherever a strategy file is read, a bundle works too: its strategy is taken. Reading checks only the form. Whether the
strategy is legal depends on the model and the cluster; `load_strategy_for` checks it and names the lines of problems.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autosync import documents
from autosync.document_lines import below
from autosync.documents import Document
from autosync.errors import DocumentError, DoesNotApplyError, Problem, first_problems
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.parts import PartName
from autosync.strategy.representation import SCHEMA_KIND, SCHEMA_VERSION, Strategy

BUNDLE_KIND = "bundle"
BUNDLE_VERSION = 1


def load_strategy(path: Path | str) -> tuple[Strategy, Document]:
    """Load a strategy from a file, checking its form; also return the document, which knows the lines."""
    document = documents.read_document(path)
    if is_bundle(document):
        documents.check_schema(document, kind=BUNDLE_KIND, version=BUNDLE_VERSION)
        document = part_of(document, "strategy")
    return parse_strategy(document), document


def load_strategy_for(path: Path | str, model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """Load a strategy from a file; raise an error with each broken rule and its line if it is not legal here."""
    strategy, document = load_strategy(path)
    check_legal(strategy, document, model, cluster)
    return strategy


def check_legal(strategy: Strategy, document: Document, model: ModelSpec, cluster: ClusterSpec) -> None:
    """Raise DoesNotApplyError if a strategy from a file is not legal for the model on the cluster."""
    found = legality.problems(strategy, model, cluster)
    if found:
        problems = sorted(map(document.locate, found), key=lambda problem: problem.line)
        raise DoesNotApplyError(first_problems(problems))


def parse_strategy(document: Document) -> Strategy:
    """Return the strategy of a document, checking its form."""
    strategy = documents.parse(document, kind=SCHEMA_KIND, version=SCHEMA_VERSION, into=Strategy)
    problems = [document.locate(problem) for problem in _form_problems(strategy)]
    if problems:
        raise DocumentError(first_problems(problems))
    return strategy


def dump_strategy(strategy: Strategy) -> dict[str, Any]:
    """Return the fields of a strategy file; reading them gives the same strategy."""
    return documents.dump(strategy, kind=SCHEMA_KIND, version=SCHEMA_VERSION)


def save_strategy(path: Path | str, strategy: Strategy) -> None:
    """Write a strategy as YAML, or as JSON if the file's name ends in `.json`."""
    documents.write(path, dump_strategy(strategy))


def looks_like_file(name: str) -> bool:
    """Whether a name must be a file's name; otherwise it may be the name of a preset."""
    return "/" in name or Path(name).suffix.lower() in (".yaml", ".yml", ".json")


def is_bundle(document: Document) -> bool:
    """Whether a document says that it is a bundle, in any version."""
    return _is_kind(document, BUNDLE_KIND)


def is_strategy(document: Document) -> bool:
    """Whether a document says that it is a strategy alone, in any version."""
    return _is_kind(document, SCHEMA_KIND)


def _is_kind(document: Document, kind: str) -> bool:
    value = document.value
    return isinstance(value, dict) and str(value.get("schema")).partition("/")[0] == f"autosync.{kind}"


def part_of(document: Document, key: str) -> Document:
    """Return the document under one key as if it were a file; its lines are still those of the whole file."""
    if key not in document.value:
        raise DocumentError([document.locate(Problem(what="is missing", rule=f"{key} is required", path=(key,)))])
    return dataclasses.replace(
        document,
        value=document.value[key],
        lines=below(document.lines, key),
        spellings=below(document.spellings, key),
    )


def _form_problems(strategy: Strategy) -> Iterator[Problem]:
    """Yield a problem for each name that no part can have.

    (The dataclass does not check names, because searches build it thousands of times a second.)
    """
    for position, message in enumerate(strategy.messages):
        for index, name in enumerate(message.parts):
            try:
                PartName.parse(name)
            except ValueError as error:
                what, _, rule = str(error).partition(" (")
                path = ("messages", position, "parts", index)
                yield Problem(what=what, rule=rule.removesuffix(")"), path=path)
