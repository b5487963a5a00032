"""Mutated files: each is a value, or refused with file and line; and the mutants are worth their name."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BeforeValidator, Field

from autosync import documents, units
from autosync.documents import STRICT
from autosync.errors import DocumentError
from tests.helpers.mutations import MAX_LENGTH, mutations, value_mutations


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    __pydantic_config__ = STRICT

    kind: Literal["ring"] = "ring"
    lanes: int = 1

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise ValueError(f"{self.lanes} lanes carry nothing (1 or more)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    __pydantic_config__ = STRICT

    kind: Literal["server", "proxy"]
    node: str
    share: float = 0.5


Synchroniser = Annotated[Ring | Server, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    __pydantic_config__ = STRICT

    variables: tuple[str, ...]
    synchroniser: Synchroniser = field(default_factory=Ring)
    priority: int | None = None
    codec: Literal["none", "fp16"] | tuple[int, float] = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    __pydantic_config__ = STRICT

    messages: tuple[Message, ...]
    rate: Annotated[float, BeforeValidator(units.parse_rate)] | None = field(
        default=None, metadata={"write": units.exact_rate}
    )
    sizes: dict[str, Annotated[int, BeforeValidator(units.parse_size)]] = field(default_factory=dict)
    overlap: bool = False
    note: str = ""


_YAML = """\
schema: autosync.answer/1
# the whole answer
messages:
- variables: [layer.0.weight, layer.0.bias]
  synchroniser: {kind: ring, lanes: 2}
  priority: 1
- variables:
  - layer.1.weight
  synchroniser:
    kind: server
    node: a
    share: 1e-3
  codec: [1, 2.5]
rate: 500 Mbit/s
sizes: {a: 4 MB, b: 12}
overlap: true
note: |
  two
  lines
"""
_JSON = documents.format_json(documents.parse_document(_YAML, file="f.yaml").value).replace("  ", "\t")


def _read(path: Path) -> Answer | None:
    """What the file holds; None where it is refused as it must be."""
    try:
        return documents.load(path, kind="answer", version=1, into=Answer)[0]
    except DocumentError as error:
        problems = error.problems
    assert 1 <= len(problems) <= 51
    num_lines = len(path.read_bytes().decode("utf-8", "replace").splitlines()) or 1
    for problem in problems:
        assert problem.file == str(path)
        assert 1 <= problem.line <= num_lines
        line = str(problem)
        assert line.isprintable()
        assert line.startswith(f"{path}:{problem.line}: ")
        assert len(line) < 2000
        # pydantic's words never reach the user.
        assert not any(word in line for word in ("Input should", "valid dict", "discriminator", "instance of"))
    return None


@pytest.mark.parametrize(("name", "text"), [("f.yaml", _YAML), ("f.json", _JSON)])
def test_the_original_is_read(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    answer = _read(tmp_path / name)
    assert answer is not None
    assert answer.sizes == {"a": 4_000_000, "b": 12}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("name", "text"), [("f.yaml", _YAML), ("f.json", _JSON)])
def test_a_mutant_is_a_value_or_refused_with_file_and_line(tmp_path: Path, name: str, text: str, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / name
    read: list[Any] = []
    for _ in range(250):
        path.write_bytes(mutations(text, rng).encode("utf-8", "surrogatepass"))
        read.append(_read(path))
    # The mutations are neither deadly nor harmless.
    assert 10 < sum(answer is None for answer in read) < 248
    for answer in read:
        if answer is not None:
            documents.write(path, documents.dump(answer, kind="answer", version=1))
            assert _read(path) == answer


def test_mutants_are_repeatable_and_bounded() -> None:
    mutants = [mutations(_YAML, random.Random(seed)) for seed in range(500)]
    assert mutants == [mutations(_YAML, random.Random(seed)) for seed in range(500)]
    assert len(set(mutants)) > 400
    assert max(map(len, mutants)) <= MAX_LENGTH


@pytest.mark.parametrize("text", ["", "\n", "a", "\ud800"])
def test_a_text_with_nothing_to_mutate(text: str) -> None:
    rng = random.Random(0)
    for _ in range(500):
        assert isinstance(mutations(text, rng), str)


def test_mutants_of_values_are_well_formed_and_leave_the_original_alone() -> None:
    original = {"messages": [{"parts": ["a", "b"], "lane": 1}, {"parts": ["c"]}], "overlap": True}
    before = json.dumps(original)
    mutants = [json.dumps(value_mutations(original, random.Random(seed))) for seed in range(3000)]
    assert json.dumps(original) == before
    assert mutants == [json.dumps(value_mutations(original, random.Random(seed))) for seed in range(3000)]
    assert len(set(mutants)) > 800
    assert all(isinstance(json.loads(mutant), dict) for mutant in mutants)
    texts = " ".join(mutants)
    for oddity in ('"lane": 2}', '"lane": 1000000000}', '["a", "a"]', '["b", "b"]', '"overlap": ["c"]', '"lane": [[]]'):
        assert oddity in texts, oddity


def test_values_without_places_stay() -> None:
    assert value_mutations([], random.Random(0)) == []
    assert value_mutations("word", random.Random(0)) == "word"
