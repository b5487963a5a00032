"""Texts to plain values with lines: what is read, how scalars are told apart, and what is refused in which words."""

import json
from typing import Any

import pytest

from autosync import syntax
from autosync.errors import DocumentError

_TAG_RULE = "(plain values only: no file can run code)"
_SYSTEM = "tag:yaml.org,2002:python/object/apply:os.system"
_NO_ITEM = "no list item where one must stand (items of a list begin with '- ')"


def _yaml(text: str) -> Any:
    return syntax.parse_yaml(text, file="f.yaml").value


def _refusal(text: str, file: str = "f.yaml") -> str:
    parse = syntax.parse_json if file.endswith("json") else syntax.parse_yaml
    with pytest.raises(DocumentError) as caught:
        parse(text, file=file)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("", None), ("~", None), ("null", None), ("true", True), ("false", False)],
        *[(word, word) for word in ("Null", "NULL", "True", "yes", "no", "on", "off", "y", "<<", "=", "-", "+", ".")],
        *[("0", 0), ("-0", 0), ("+5", 5), ("-12", -12), ("9223372036854775807", 2**63 - 1)],
        *[("1.5", 1.5), ("1.", 1.0), (".5", 0.5), ("-.5", -0.5), ("1e3", 1000.0), ("1E-3", 0.001), ("1.5e+3", 1500.0)],
        *[("0.0", 0.0), ("1e-400", 0.0), ("1e22", 1e22), ("9223372036854775808", 2.0**63)],
        *[("9" * 30, float("9" * 30)), ("9" * 400, "9" * 400), ("1e400", "1e400"), ("-1e400", "-1e400")],
        *[
            (word, word)
            for word in ("007", "0x1F", "0o7", "1_000", "12:30", "1:2:3", "2026-11-21", "1e", "e3", "1e3.5")
        ],
        *[(word, word) for word in (".inf", "-.inf", ".nan", "NaN", "Infinity", "inf", "٣", "1 2")],
    ],
)
def test_scalars(text: str, value: object) -> None:
    read = syntax.plain(text)
    assert (read, type(read)) == (value, type(value))


def test_values_lines_and_spellings() -> None:
    text = """\
# a comment
name: two words
rate: 1e3
nothing:
nodes:
- {name: a, devices: 0.50}
-
  name: 'b'
  tags: [x, ~,
    '3']
"""
    parsed = syntax.parse_yaml(text, file="f.yaml")
    assert parsed.value == {
        "name": "two words",
        "rate": 1000.0,
        "nothing": None,
        "nodes": [{"name": "a", "devices": 0.5}, {"name": "b", "tags": ["x", None, "3"]}],
    }
    assert parsed.lines == {
        (): 2,
        ("name",): 2,
        ("rate",): 3,
        ("nothing",): 4,
        ("nodes",): 5,
        ("nodes", 0): 6,
        ("nodes", 0, "name"): 6,
        ("nodes", 0, "devices"): 6,
        ("nodes", 1): 8,
        ("nodes", 1, "name"): 8,
        ("nodes", 1, "tags"): 9,
        ("nodes", 1, "tags", 0): 9,
        ("nodes", 1, "tags", 1): 9,
        ("nodes", 1, "tags", 2): 10,
    }
    assert parsed.spellings == {
        ("rate",): "1e3",
        ("nothing",): "",
        ("nodes", 0, "devices"): "0.50",
        ("nodes", 1, "tags", 1): "~",
    }


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_every_kind_of_line_end(newline: str) -> None:
    parsed = syntax.parse_yaml(newline.join(["a: 1", "b: |", "  text", "c: 3", ""]), file="f.yaml")
    assert parsed.value == {"a": 1, "b": "text\n", "c": 3}
    assert parsed.lines["c",] == 4


def test_keys_are_strings() -> None:
    assert _yaml("{1: a, true: b, ~: c, 1.5: d, '': e}") == {"1": "a", "true": "b", "~": "c", "1.5": "d", "": "e"}


def test_a_merge_key_is_a_key_like_any_other() -> None:
    assert _yaml("<<: {a: 1}") == {"<<": {"a": 1}}


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "---\n...\n"])
def test_nothing(text: str) -> None:
    assert _yaml(text) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: &x 2", "f.yaml:2: anchors are not read (write each value out)"),
        ("a: 1\nb: *x", "f.yaml:2: aliases are not read (write each value out)"),
        ("a: &x {b: 1}", "f.yaml:1: anchors are not read (write each value out)"),
        ("a: 1\n---\nb: 2", "f.yaml:2: more than one document (one document a file)"),
        ("---\n---\n", "f.yaml:2: more than one document (one document a file)"),
        ("\na: !!python/object/apply:os.system [x]", f"f.yaml:2: the tag '{_SYSTEM}' is not read {_TAG_RULE}"),
        ("a: !!int 5", f"f.yaml:1: the tag 'tag:yaml.org,2002:int' is not read {_TAG_RULE}"),
        ("!x y: 1", "f.yaml:1: the tag '!x' is not read (plain values only: no file can run code)"),
        ("? [a, b]\n: 1", "f.yaml:1: a list or mapping as a key (keys are words)"),
        ("a:\n  b: 1\n  b: 2", "f.yaml:3: a.b: this key is given twice (a key stands once; the first is in line 2)"),
        ("[" * 41, "f.yaml:1: nested too deeply (at most 40 levels)"),
        ("\n".join("  " * n + "a:" for n in range(50)), "f.yaml:41: nested too deeply (at most 40 levels)"),
        ("a: 1\nb: \x07", "f.yaml:2: the character U+0007 is no text (files hold text, tabs and line breaks)"),
        ("a: \ud800", "f.yaml:1: the character U+D800 is no text (files hold text, tabs and line breaks)"),
        ("a: \0", "f.yaml:1: the character U+0000 is no text (files hold text, tabs and line breaks)"),
        ("a: [1,\n", "f.yaml:1: no YAML: no value where one must stand (look at the brackets and commas)"),
        ("a:\n  b: 'x\n", "f.yaml:2: no YAML: a quote that is never closed (quotes come in pairs)"),
        ("a:\n\tb: 1", "f.yaml:2: no YAML: a tab where spaces must stand (YAML is indented with spaces)"),
        ("a: @b", "f.yaml:1: no YAML: a value that begins with '@' (such a value needs quotes)"),
        ("a: b: c", "f.yaml:1: no YAML: a ':' where no key can stand (text with ': ' needs quotes)"),
        (
            "a: 1\n - b\nc\nd",
            "f.yaml:4: no YAML: a key without ':' (KEY: VALUE); what is open there began in line 3",
        ),
        ("- b\nc: d", f"f.yaml:2: no YAML: {_NO_ITEM}; what is open there began in line 1"),
        ('a: "\\q"', "f.yaml:1: no YAML: found unknown escape character (YAML 1.2)"),
        ('a: "\\ud800"', "f.yaml:1: no YAML: found invalid Unicode character escape code (YAML 1.2)"),
        ("%YAML 9.9\n---\na: 1", "f.yaml:1: no YAML: found incompatible YAML document (YAML 1.2)"),
    ],
)
def test_what_is_refused_in_yaml(text: str, words: str) -> None:
    assert _refusal(text) == words


def test_all_keys_given_twice_are_reported_at_once() -> None:
    refusal = _refusal("a: 1\na: 2\nb: {c: 1, c: 2}\n")
    assert [line.split(":")[1] for line in refusal.splitlines()] == ["2", "3"]


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_json(indent: int | str | None) -> None:
    value = {"a": [1, -2.5, 1e22, True, None, '😀 \u2028 \\ / " \x7f\n'], "k" * 3000: {"": []}}
    for ascii_only in (True, False):
        text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
        assert syntax.parse_json(text, file="f.json").value == value


def test_lines_of_json() -> None:
    parsed = syntax.parse_json('{\n\t"a": [\n\t\t1,\n\n\t\t{"b": "x\\n"}], "c":\n\t\t1.50\r\n}\n', file="f.json")
    assert parsed.value == {"a": [1, {"b": "x\n"}], "c": 1.5}
    assert parsed.lines == {
        (): 1,
        ("a",): 2,
        ("a", 0): 3,
        ("a", 1): 5,
        ("a", 1, "b"): 5,
        ("c",): 5,
    }
    # Of what JSON would spell in the same way nothing is kept.
    assert parsed.spellings == {("c",): "1.50"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "f.json:1: no JSON: no value where one must stand (look at the brackets and commas)"),
        ('{"a": 1\n,}\n', "f.json:2: no JSON: no key where one must stand (keys stand in double quotes)"),
        ('{"a": 1\n"b": 2}', "f.json:2: no JSON: a ',' is missing (commas part items and fields)"),
        ('{"a" 1}', "f.json:1: no JSON: a ':' is missing (\"KEY\": VALUE)"),
        ("{'a': 1}", "f.json:1: no JSON: no key where one must stand (keys stand in double quotes)"),
        ("[1,\n2]\n[3]", "f.json:3: no JSON: more than one value (one value a file)"),
        ('[\n"a', "f.json:2: no JSON: a quote that is never closed (quotes come in pairs)"),
        ('["a\n"]', r"f.json:1: no JSON: a control character within quotes (write \n, \t or \u0000)"),
        ('["\\x"]', r"f.json:1: no JSON: Invalid \escape (JSON, RFC 8259)"),
        ("[1,\nNaN]", "f.json:2: no JSON: NaN (JSON has finite numbers only)"),
        ("[-Infinity]", "f.json:1: no JSON: -Infinity (JSON has finite numbers only)"),
        ('["\\ud800"]', "f.json:1: half a surrogate pair is no text (files hold Unicode text)"),
        ('["\ud800"]', "f.json:1: half a surrogate pair is no text (files hold Unicode text)"),
        ('{"a": 1,\n"a": 2}', "f.json:2: a: this key is given twice (a key stands once; the first is in line 1)"),
        ("\n" + "[" * 41 + "]" * 41, "f.json:2: nested too deeply (at most 40 levels)"),
        ('{"a":' * 100_000, "f.json:1: nested too deeply (at most 40 levels)"),
        ("\ufeff[]", "f.json:1: no JSON: a second byte order mark (one at most)"),
    ],
)
def test_what_is_refused_in_json(text: str, words: str) -> None:
    assert _refusal(text, "f.json") == words


def test_a_huge_number_is_no_hang() -> None:
    assert syntax.parse_json("9" * 100_000, file="f.json").value == "9" * 100_000
    assert _yaml("1e999999999") == "1e999999999"


@pytest.mark.parametrize(
    "text",
    ['"' + '\\"' * 500_000, '["' + "x" * 1_000_000, '"' * 999_999],
    ids=["escaped", "open", "many"],
)
def test_a_string_that_is_never_closed_is_looked_at_once(text: str) -> None:
    """Looked at again from each of its quotes, a megabyte would take hours."""
    with pytest.raises(DocumentError):
        syntax.parse_json(text, file="a.json")


_MANY = 500


def _flow(text: str, count: int = _MANY) -> str:
    return f"[{text * count}1]"


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents of the same kind as those that are too large, in a thousandth of the size."""
    monkeypatch.setattr(syntax, "MAX_VALUES", 300)
    monkeypatch.setattr(syntax, "MAX_LENGTH", 20_000)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("".join(f"k{i}: 1\n" for i in range(_MANY)), "f.yaml:150: too many values"),
        ("- {name: a, rate: 1}\n" * _MANY, "f.yaml:60: too many values"),
        (_flow("1,"), "f.yaml:1: too many values"),
        (_flow("[],"), "f.yaml:1: too many values"),
        (_flow("{},"), "f.yaml:1: too many values"),
        (_flow("{a: [1]},"), "f.yaml:1: too many values"),
        (_flow(","), "no YAML"),
        (_flow('"",'), "f.yaml:1: too many values"),
        ("-\n" * _MANY, "f.yaml:300: too many values"),
        ("[" * _MANY, "f.yaml:1: nested too deeply"),
        ("- " * _MANY, "f.yaml:1: nested too deeply"),
        ("a: 1\n" * _MANY, "f.yaml:51: a: this key is given twice"),
        ("a: " + "x" * 90_000, "f.yaml:1: a value or a comment without end"),
        ("a: " + "1" * 90_000, "f.yaml:1: a value or a comment without end"),
        ('a: "' + "x " * 45_000 + '"', "f.yaml:1: a value or a comment without end"),
        ("a: |\n" + "  x\n" * 22_000, "a value or a comment without end"),
        ("a: 1\n" + "# no end, [of: {comments}]\n" * 3000, "a value or a comment without end"),
        ("a: 1\n" + "\n" * 90_000, "a value or a comment without end"),
        ("a: 1" + " " * 90_000, "f.yaml:1: a value or a comment without end"),
        ("&" + "a" * 90_000, "f.yaml:1: a value or a comment without end"),
        ("!" + "a" * 90_000, "f.yaml:1: a value or a comment without end"),
        ("%" + "a" * 90_000, "f.yaml:1: a value or a comment without end"),
        ("x" * 90_000 + ": 1", "f.yaml:1: a value or a comment without end"),
    ],
)
def test_yaml_without_end_is_refused_where_it_is_too_much(text: str, words: str) -> None:
    with pytest.raises(DocumentError) as raised:
        syntax.parse_yaml(text, file="f.yaml")
    assert words in str(raised.value)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{" + "".join(f'"k{i}":1,' for i in range(_MANY)) + '"a":1}', "f.json:1: too many values"),
        (_flow("1,"), "f.json:1: too many values"),
        (_flow("[],"), "f.json:1: too many values"),
        (_flow("\n{},"), "f.json:301: too many values"),
        ('"' * 2001, "f.json:1: too many values"),
        ("{}[]:," * _MANY, "f.json:1: too many values"),
        ("a " * 2000, "f.json:1: too many values"),
        ('{"a":' * _MANY, "f.json:1: nested too deeply"),
        ('"' + "x" * 200_000 + '"', "f.json:1: a value without end"),
        ('"' + "x" * 30_000 + '"', "f.json:1: a value without end"),
        ('"' + "\\u0000" * 30_000 + '"', "f.json:1: a value without end"),
        ("1" * 200_000, "f.json:1: a value without end"),
        ("\\" * 200_000, "f.json:1: a value without end"),
        (" " * 200_000, "f.json:1: no JSON: no value"),
        ("\n" * 200_000, "f.json:200000: no JSON: no value"),
    ],
)
def test_json_without_end_is_refused_before_anything_is_built(
    text: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syntax, "MAX_TOKENS", 900)
    monkeypatch.setattr(syntax, "MAX_TOKEN", 120_000)
    with pytest.raises(DocumentError) as raised:
        syntax.parse_json(text, file="f.json")
    assert words in str(raised.value)


@pytest.mark.usefixtures("small_limits")
def test_only_so_much_of_a_document_is_looked_at() -> None:
    """What is behind the place where it is too much may be anything, and costs nothing."""
    with pytest.raises(DocumentError, match="too many values"):
        syntax.parse_yaml("- 1\n" * 20_000 + "\0", file="f.yaml")


@pytest.mark.usefixtures("small_limits")
def test_documents_up_to_the_limits_are_read() -> None:
    text = "[" + "1, " * 298 + "1]"
    assert syntax.parse_yaml(text, file="f.yaml").value == [1] * 299
    assert syntax.parse_json(text, file="f.json").value == [1] * 299
    long = {f"k{number}": "x" * 19_000 for number in range(10)}
    assert syntax.parse_yaml("".join(f"{key}: {value}\n" for key, value in long.items()), file="f.yaml").value == long


@pytest.mark.parametrize(
    "text",
    ["a: 1\r\nb: [\r\n", "a: [\n\n\n", "x: [\n", "a: 1\n\u2028b: [", "- a\n- 'b\n\n", "\u00e9: \u00e9\n\u00e9: ["],
)
def test_mistakes_at_the_end_are_in_the_last_line(text: str) -> None:
    with pytest.raises(DocumentError) as raised:
        syntax.parse_yaml(text, file="f.yaml")
    assert raised.value.problems[0].line == len(text.splitlines())


def test_a_number_that_no_machine_holds_is_text() -> None:
    assert syntax.plain("1" * 5000) == "1" * 5000
    assert syntax.plain("." + "1" * 5000) == "." + "1" * 5000
