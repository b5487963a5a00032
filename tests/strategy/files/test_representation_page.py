"""docs/representation.md says what the code does: its examples load, its tables are complete."""

import dataclasses
import re
import typing
from pathlib import Path

import pytest

from autosync.documents import parse_document
from autosync.strategy import canonical
from autosync.strategy.backends import BACKENDS
from autosync.strategy.codecs import Codec
from autosync.strategy.columns import Columns
from autosync.strategy.files import parse_strategy
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers import synchroniser_kinds
from tests.helpers.example_plans import model_of

PAGE = (Path(__file__).parents[3] / "docs" / "representation.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def _whole_file(example: str) -> str:
    if example.startswith("schema:"):
        return example
    if example.startswith("- "):
        example = f"messages:\n{example}"
    elif "messages:" not in example:
        example += "messages:\n- parts: [x]\n"
    return f"schema: autosync.strategy/1\n{example}"


@pytest.fixture
def examples() -> list[Strategy]:
    return [parse_strategy(parse_document(_whole_file(text), file="page.yaml")) for text in EXAMPLES]


def test_examples_show_every_synchroniser_and_codec(examples: list[Strategy]) -> None:
    codecs = typing.get_args(typing.get_args(Codec)[0])
    kinds = {field.default for codec in codecs for field in dataclasses.fields(codec) if field.name == "kind"}
    messages = [message for strategy in examples for message in strategy.messages]
    assert {type(message.synchroniser) for message in messages} == set(synchroniser_kinds().values())
    assert {message.codec.kind for message in messages if message.codec} == kinds


def test_every_field_of_a_strategy_and_a_message_is_named() -> None:
    fields = [field.name for owner in (Strategy, Message) for field in dataclasses.fields(owner)]
    assert [name for name in fields if f"{name}:" not in PAGE] == []
    settings = {field.name for owner in synchroniser_kinds().values() for field in dataclasses.fields(owner)}
    assert [name for name in sorted(settings) if f"`{name}" not in PAGE and f"{name}:" not in PAGE] == []


def test_the_backend_table_is_the_code_s() -> None:
    def row(label: str) -> list[str]:
        (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {label} |")]
        return [cell.strip() for cell in line.split("|")[2:-1]]

    names = [name.strip("`") for name in row("can it")]
    assert names == list(BACKENDS)
    yes = {True: "yes", False: "no"}
    backends = [BACKENDS[name] for name in names]
    routes = {True: "yes", False: "`levels` of an all-reduce"}
    assert row("topologies other than `native`") == [routes[backend.own_rounds] for backend in backends]
    assert row("priorities") == [yes[backend.overtakes] for backend in backends]
    assert row("servers on nodes without devices") == [yes[backend.serves_without_device] for backend in backends]
    assert row("lanes") == [str(backend.max_lanes) for backend in backends]


def test_the_page_has_as_many_rewrite_rules_as_the_code() -> None:
    rules = re.findall(r"^(\d+)\. ", canonical.__doc__ or "", re.MULTILINE)
    identities = PAGE.split("## Identities")[1]
    assert re.findall(r"^(\d+)\. ", identities, re.MULTILINE) == rules


def test_the_columns_are_those_of_the_code() -> None:
    section = PAGE.partition("## As columns")[2].partition("\n## ")[0]
    rows = [line.rpartition(" | ")[2] for line in section.splitlines() if line.startswith(("| s", "| m", "| p"))]
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row)] == list(Columns._fields)


def test_the_example_of_columns_runs() -> None:
    (example,) = [text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "Numbering" in text]
    strategy = Strategy(messages=(Message(parts=("table", "linear", "bias"), lane=2),))
    names = {"model": model_of(), "strategy": strategy}
    exec(example, names)
