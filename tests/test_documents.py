"""Files in and out: what is written reads back as it was, headers are checked, and every mistake has file and line."""

import enum
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BeforeValidator

from autosync import documents, units
from autosync.documents import STRICT
from autosync.errors import DocumentError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    __pydantic_config__ = STRICT

    kind: Literal["ring"] = "ring"
    lanes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    __pydantic_config__ = STRICT

    name: str
    rate: Annotated[float, BeforeValidator(units.parse_rate)] = field(metadata={"write": units.exact_rate})
    memory: Annotated[int, BeforeValidator(units.parse_size)] | None = field(
        default=None, metadata={"write": units.exact_size}
    )
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a host without a name (every host has one)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    __pydantic_config__ = STRICT

    hosts: tuple[Host, ...]
    shape: Ring = field(default_factory=Ring)
    colour: Colour = Colour.RED
    weights: dict[str, float] = field(default_factory=dict)


_PARK = """\
schema: autosync.park/2
hosts:
- name: a
  rate: 10 Gbit/s
- name: b
  rate: 1.5 GB/s
  memory: 64 GiB
  tags: ['1', yes]
colour: blue
weights: {x: 1, 'y': 2.5}
"""


def _parse(text: str, file: str = "park.yaml") -> Park:
    document = documents.parse_document(text, file=file)
    return documents.parse(document, kind="park", version=2, into=Park)


def _refusal(text: str, file: str = "park.yaml") -> str:
    with pytest.raises(DocumentError) as caught:
        _parse(text, file)
    return str(caught.value)


class TestReading:
    def test_a_file_becomes_a_dataclass(self, tmp_path: Path) -> None:
        path = tmp_path / "park.yaml"
        path.write_text(_PARK)
        park, document = documents.load(path, kind="park", version=2, into=Park)
        assert park == Park(
            hosts=(
                Host(name="a", rate=1.25e9),
                Host(name="b", rate=1.5e9, memory=2**36, tags=("1", "yes")),
            ),
            colour=Colour.BLUE,
            weights={"x": 1.0, "y": 2.5},
        )
        assert document.line(("hosts", 1, "memory")) == 7
        # What a file does not have is where it would stand.
        assert document.line(("hosts", 0, "memory")) == 3
        assert document.line(("nowhere",)) == 1

    def test_all_mistakes_at_once_in_the_order_of_the_lines(self) -> None:
        text = _PARK.replace("name: a", "naem: a").replace("1.5 GB/s", "fast").replace("blue", "bleu")
        text = text.replace("hosts:", "shape: {kind: ring, lanes: four}\nhosts:")
        assert _refusal(text).splitlines() == [
            "park.yaml:2: shape.lanes: 'four' is not allowed here (expected a whole number)",
            "park.yaml:4: hosts[0].name: is missing (name is required)",
            "park.yaml:4: hosts[0].naem: unknown key (known: name, rate, memory, tags); did you mean 'name'?",
            "park.yaml:7: hosts[1].rate: 'fast' is no rate (write a rate such as '500 Mbit/s' or '25 GB/s')",
            "park.yaml:10: colour: unknown value 'bleu' (known: red, blue); did you mean 'blue'?",
        ]

    def test_a_mistake_of_the_whole_is_where_the_whole_begins(self) -> None:
        assert _refusal(_PARK.replace("name: b", "name: ''")) == (
            "park.yaml:5: hosts[1]: a host without a name (every host has one)"
        )

    def test_no_more_than_fifty_mistakes_are_shown(self) -> None:
        lines = _refusal(_PARK + "".join(f"key{n}: 1\n" for n in range(60))).splitlines()
        assert len(lines) == 51
        assert lines[0].startswith("park.yaml:11: key0: unknown key")
        assert lines[-1] == "park.yaml:60: and 10 more mistakes in this file (the first 50 are shown)"

    def test_json(self, tmp_path: Path) -> None:
        path = tmp_path / "park.JSON"
        path.write_text('{\n\t"schema": "autosync.park/2",\n\t"hosts": [\n\t\t{"name": "a", "rate": "1 GB/s"}]}')
        assert documents.load(path, kind="park", version=2, into=Park)[0].hosts == (Host(name="a", rate=1e9),)
        path.write_text('{\n\t"schema": "autosync.park/2",\n\t"hosts": [\n\t\t{"name": "a",\n\t\t"rate": 5}]}')
        with pytest.raises(DocumentError, match=r"park\.JSON:5: hosts\[0\]\.rate: 5 is no rate"):
            documents.load(path, kind="park", version=2, into=Park)

    def test_without_a_document_there_are_paths_and_no_lines(self) -> None:
        with pytest.raises(DocumentError, match=r"^hosts\[0\]: 5 is not allowed here \(expected a mapping with name"):
            documents.from_plain({"hosts": [5]}, into=Park)

    @pytest.mark.parametrize("value", [{1, 2}, math.nan, object(), {"a": 1j}, "\ud800"])
    def test_what_no_file_could_hold(self, value: object) -> None:
        with pytest.raises(DocumentError, match="no plain value"):
            documents.from_plain({"hosts": value}, into=Park)


class TestFiles:
    @pytest.mark.parametrize(
        ("raw", "line", "what"),
        [
            (b"a: 1\nb: \xff\n", 2, "the file is not UTF-8 text (files are UTF-8)"),
            ("a: 1".encode("utf-16"), 1, "the file is not UTF-8 text (files are UTF-8)"),
            (b"a: 1\n\xed\xa0\x80", 2, "the file is not UTF-8 text (files are UTF-8)"),
        ],
    )
    def test_what_is_no_text(self, tmp_path: Path, raw: bytes, line: int, what: str) -> None:
        path = tmp_path / "f.yaml"
        path.write_bytes(raw)
        with pytest.raises(DocumentError) as caught:
            documents.read_document(path)
        assert str(caught.value) == f"{path}:{line}: {what}"

    def test_a_byte_order_mark_is_no_matter(self, tmp_path: Path) -> None:
        for name in ("f.yaml", "f.json"):
            (tmp_path / name).write_text('\ufeff{"a": 1}')
            assert documents.read_document(tmp_path / name).value == {"a": 1}

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(DocumentError, match=r"none\.yaml: cannot be read: No such file or directory"):
            documents.read_document(tmp_path / "none.yaml")

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DocumentError, match=": cannot be read: Is a directory"):
            documents.read_document(tmp_path)

    def test_a_name_that_no_file_can_have(self) -> None:
        with pytest.raises(DocumentError, match=r"a\\x00b: cannot be read: .*embedded null "):
            documents.read_document("a\0b")

    def test_a_file_too_large(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(documents, "MAX_BYTES", 8)
        (tmp_path / "f.yaml").write_text("a: 12345")
        assert documents.read_document(tmp_path / "f.yaml").value == {"a": 12345}
        # Cut in the middle of a character, it is still too large and not badly encoded.
        (tmp_path / "f.yaml").write_text("a: 1234éé")
        with pytest.raises(DocumentError, match=r"f\.yaml:1: the file is too large \(at most 8 bytes\)"):
            documents.read_document(tmp_path / "f.yaml")


class TestSchema:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "park.yaml:1: the file holds no fields (a park file is a mapping)"),
            ("- a", "park.yaml:1: the file holds no fields (a park file is a mapping)"),
            ("\na: 1", "park.yaml:2: the first field, schema, is missing (schema: autosync.park/2)"),
        ],
    )
    def test_no_header(self, text: str, words: str) -> None:
        assert _refusal(text) == words

    @pytest.mark.parametrize(
        ("schema", "what"),
        [
            ("autosync.model/2", "this is no park file: its schema is 'autosync.model/2'"),
            ("5", "this is no park file: its schema is something else"),
            ("[]", "this is no park file: its schema is something else"),
            ("autosync.park", "unknown version in 'autosync.park'"),
            ("autosync.park/²", "unknown version in 'autosync.park/²'"),
            ("autosync.park/0", "unknown version in 'autosync.park/0'"),
            (f"autosync.park/{'9' * 5000}", "unknown version in something else"),
        ],
    )
    def test_another_header(self, schema: str, what: str) -> None:
        assert _refusal(f"hosts: []\nschema: {schema}") == f"park.yaml:2: schema: {what} (schema: autosync.park/2)"

    def test_a_newer_version_is_refused_by_name(self) -> None:
        refusal = _refusal("schema: autosync.park/3")
        assert "version 3 of autosync.park is newer than this autosync, which reads versions up to 2" in refusal
        assert refusal.endswith("; upgrade autosync")


class TestWriting:
    def test_yaml_for_people(self) -> None:
        park = _parse(_PARK)
        assert documents.format_yaml(documents.dump(park, kind="park", version=2)) == (
            "schema: autosync.park/2\n"
            "hosts:\n"
            "- {name: a, rate: 10 Gbit/s}\n"
            "- name: b\n"
            "  rate: 12 Gbit/s\n"
            "  memory: 64 GiB\n"
            "  tags: ['1', 'yes']\n"
            "colour: blue\n"
            "weights: {x: 1.0, y: 2.5}\n"
        )

    def test_defaults_are_left_out_and_a_kind_never(self) -> None:
        park = Park(hosts=(), shape=Ring(lanes=2))
        assert documents.to_plain(park) == {"hosts": [], "shape": {"kind": "ring", "lanes": 2}}
        assert documents.to_plain(Ring()) == {"kind": "ring"}

    @pytest.mark.parametrize("name", ["park.yaml", "park.yml", "park.json", "park.JSON"])
    def test_what_is_written_is_read(self, tmp_path: Path, name: str) -> None:
        park = _parse(_PARK)
        path = tmp_path / "new" / name
        documents.write(path, documents.dump(park, kind="park", version=2))
        assert documents.load(path, kind="park", version=2, into=Park)[0] == park
        assert path.read_text().startswith("{") == name.lower().endswith("json")

    @pytest.mark.parametrize("number", [1e-05, -3e-07, 1.5e-07, 1e22, 0.1, 100.0])
    def test_other_readers_of_yaml_see_the_same_numbers(self, number: float) -> None:
        assert yaml.safe_load(documents.format_yaml({"a": number, "b": [number]})) == {"a": number, "b": [number]}

    def test_the_same_list_twice_is_written_twice(self) -> None:
        inner = [{"a": 1}]
        assert documents.format_yaml({"x": inner, "y": inner}) == "x:\n- {a: 1}\ny:\n- {a: 1}\n"

    @pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
    def test_numbers_are_finite(self, number: float) -> None:
        with pytest.raises(ValueError, match="numbers are finite"):
            documents.format_yaml({"a": number})
        with pytest.raises(ValueError, match="JSON compliant"):
            documents.format_json({"a": number})


# Text that some reader of YAML takes for something else, or that is hard to quote.
_TRAPS = [
    *(
        "",
        " ",
        "~",
        "null",
        "Null",
        "true",
        "True",
        "yes",
        "No",
        "on",
        "off",
        "y",
        "n",
        "=",
        "<<",
        "-",
        "--",
        "- a",
        "?",
    ),
    *("? a", ":", "a: b", "a:", ": a", "a #b", "#", "&a", "*a", "!a", "|", ">", "%", "%YAML", "@", "`", "---", "..."),
    *("0", "-1", "+1", "007", "0x1F", "0o17", "0b1", "1_000", "12:30", "1:2:3.5", "1e3", "1E+3", "1.5e3", ".5", "-.5"),
    *("1.", "+.5e-3", ".inf", "-.Inf", ".NaN", "2026-11-21", "2026-11-21 10:00:00", "1e400", "9" * 30, "123e4567"),
    *(
        "a\n",
        "\na",
        "a\n\nb",
        " a\n  b\n",
        "a\n ",
        "\n",
        "\t",
        "a\tb",
        "\ta",
        "a\r\nb",
        "\r",
        "\x85",
        "\u2028a",
        "\ufeffa",
    ),
    *(
        "\0",
        "\x07",
        "\x1b[31m",
        "\x7f",
        "\x9f",
        "\ufffe",
        "é",
        "😀",
        "'",
        '"',
        "'a'",
        '"a"',
        "\\",
        "\\n",
        "{",
        "[a]",
        ",",
    ),
    *("x " * 100, "x" * 300, "x" * 1500, " " * 200, "a\n" * 100),
]
_TEXT = st.sampled_from(_TRAPS) | st.text(st.characters(codec="utf-8"), max_size=20)
_NUMBERS = st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
_PLAIN = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=15,
)


def _typed(value: Any) -> Any:
    """The value with the types that == does not tell apart: 1, 1.0 and True; 0.0 and -0.0."""
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    return type(value).__name__, repr(value)


class TestRoundTrips:
    @given(_PLAIN)
    @example([1e-05, 1e22, -0.0, 5e-324, 1.7976931348623157e308, 0.1, 1e16, 123456789012345680.0, 100.0])
    @example([2**63 - 1, -(2**63) + 1, 0])
    def test_plain_values(self, value: Any) -> None:
        read = documents.parse_document(documents.format_yaml(value), file="f.yaml")
        assert _typed(read.value) == _typed(value)
        json = documents.parse_document(documents.format_json(value), file="f.json")
        assert _typed(json.value) == _typed(value)

    @pytest.mark.parametrize("text", _TRAPS)
    def test_texts_and_keys_that_look_like_something_else(self, text: str) -> None:
        value = {text: text, "list": [text, {text: [text]}]}
        for name, form in (("f.yaml", documents.format_yaml), ("f.json", documents.format_json)):
            assert documents.parse_document(form(value), file=name).value == value

    @given(_PLAIN)
    def test_our_json_is_yaml_too(self, value: Any) -> None:
        # Not all JSON is: a key beyond 1024 characters, for one.
        if "x" * 1500 not in str(value):
            text = documents.format_json(value)
            assert _typed(documents.parse_document(text, file="f.yaml").value) == _typed(value)

    @given(_PLAIN)
    def test_lines_are_those_of_the_text(self, value: Any) -> None:
        for name, text in (("f.yaml", documents.format_yaml(value)), ("f.json", documents.format_json(value))):
            document = documents.parse_document(text, file=name)
            num_lines = len(text.splitlines())
            assert all(1 <= line <= num_lines for line in document.lines.values())
            assert document.line(("no", "such", "path")) <= num_lines
