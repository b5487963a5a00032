"""Strategy files: YAML (or JSON) into a `Strategy` and back.

Wherever a strategy file is read, a bundle does as well: its strategy is taken. Reading checks the form; whether the
strategy is legal can only be said for a model on a cluster (`load_strategy_for`), and is then said with the line.
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
    """The strategy of a file, right in form, and the document that knows its lines."""
    document = documents.read_document(path)
    if is_bundle(document):
        documents.check_schema(document, kind=BUNDLE_KIND, version=BUNDLE_VERSION)
        document = part_of(document, "strategy")
    return parse_strategy(document), document


def load_strategy_for(path: Path | str, model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """The strategy of a file, legal for the model on the cluster; each rule that it breaks is told with its line."""
    strategy, document = load_strategy(path)
    check_legal(strategy, document, model, cluster)
    return strategy


def check_legal(strategy: Strategy, document: Document, model: ModelSpec, cluster: ClusterSpec) -> None:
    """Refuse a strategy from a file that is not legal for the model on the cluster."""
    found = legality.problems(strategy, model, cluster)
    if found:
        problems = sorted(map(document.locate, found), key=lambda problem: problem.line)
        raise DoesNotApplyError(first_problems(problems))


def parse_strategy(document: Document) -> Strategy:
    """The strategy that a document holds, right in form."""
    strategy = documents.parse(document, kind=SCHEMA_KIND, version=SCHEMA_VERSION, into=Strategy)
    problems = [document.locate(problem) for problem in _form_problems(strategy)]
    if problems:
        raise DocumentError(first_problems(problems))
    return strategy


def dump_strategy(strategy: Strategy) -> dict[str, Any]:
    """The fields of a file that reads back as the same strategy."""
    return documents.dump(strategy, kind=SCHEMA_KIND, version=SCHEMA_VERSION)


def save_strategy(path: Path | str, strategy: Strategy) -> None:
    """Write a strategy as YAML, or as JSON where the file's name ends so."""
    documents.write(path, dump_strategy(strategy))


def looks_like_file(name: str) -> bool:
    """Whether a name can only be meant as a file's; the name of a preset is the alternative."""
    return "/" in name or Path(name).suffix.lower() in (".yaml", ".yml", ".json")


def is_bundle(document: Document) -> bool:
    """Whether a document says that it is a bundle, of whatever version."""
    value = document.value
    return isinstance(value, dict) and str(value.get("schema")).partition("/")[0] == f"autosync.{BUNDLE_KIND}"


def part_of(document: Document, key: str) -> Document:
    """The document under one key, as if it were a file of its own; the lines are those of the whole file."""
    if key not in document.value:
        raise DocumentError([document.locate(Problem(what="is missing", rule=f"{key} is required", path=(key,)))])
    return dataclasses.replace(
        document,
        value=document.value[key],
        lines=below(document.lines, key),
        spellings=below(document.spellings, key),
    )


def _form_problems(strategy: Strategy) -> Iterator[Problem]:
    """Names that no part can have. (The dataclass does not look: the search builds it thousands of times a second.)"""
    for position, message in enumerate(strategy.messages):
        for index, name in enumerate(message.parts):
            try:
                PartName.parse(name)
            except ValueError as error:
                what, _, rule = str(error).partition(" (")
                path = ("messages", position, "parts", index)
                yield Problem(what=what, rule=rule.removesuffix(")"), path=path)
