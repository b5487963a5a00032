"""pydantic's findings in our words: every kind of finding that strict dataclasses can make of plain values."""

import datetime as dt
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import BeforeValidator, Field

from autosync import units, validation
from autosync.documents import STRICT
from autosync.errors import InputError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    __pydantic_config__ = STRICT

    kind: Literal["ring"] = "ring"
    lanes: int

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise ValueError(f"{self.lanes} lanes (at least one (1) lane)")
        if self.lanes == 100:
            raise AssertionError("too many lanes")
        if self.lanes == 13:
            raise ValueError("bad luck")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    __pydantic_config__ = STRICT

    kind: Literal["server", "proxy"]
    lanes: str = ""
    next: Annotated[Ring, Field()] | str | None = None


Shape = Annotated[Ring | Server, Field(discriminator="kind")]
Rate = Annotated[float, BeforeValidator(units.parse_rate)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    __pydantic_config__ = STRICT

    number: int = 0
    fraction: float | None = None
    text: str = ""
    truth: bool = False
    nothing: None = None
    word: Literal["slow", "fast", 3] = "slow"
    colour: Colour | None = None
    items: tuple[int, ...] = ()
    pair: tuple[int, str] = (0, "")
    a_list: list[float] = field(default_factory=list)
    a_set: frozenset[str] = frozenset()
    table: Mapping[str, int] = field(default_factory=dict)
    limited: dict[Literal["in", "out"], int] = field(default_factory=dict)
    ring: Ring | None = None
    shape: Shape | None = None
    shapes: tuple[Shape, ...] = ()
    rate: Rate = 1.0
    number_or_text: int | str = 0
    rate_or_auto: Rate | Literal["auto"] | None = None
    ring_or_text: Ring | str | tuple[int, ...] = ""
    shape_or_text: Shape | str | None = None
    server_or_number: Server | int = 0
    above: Annotated[int, Field(gt=0, lt=10, multiple_of=3)] = 3
    between: Annotated[float, Field(ge=0, le=1)] = 0
    short: Annotated[str, Field(min_length=1, max_length=3, pattern="^[a-z]*$")] = "a"
    few: Annotated[tuple[int, ...], Field(min_length=1, max_length=2)] = (1,)
    anything: Any = None


_NONE = " is not allowed here "


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"number": "4"}, f"number: '4'{_NONE}(expected a whole number); leave out the quotes"),
        ({"number": "four"}, f"number: 'four'{_NONE}(expected a whole number)"),
        ({"number": 1.5}, f"number: 1.5{_NONE}(expected a whole number)"),
        ({"number": True}, f"number: true{_NONE}(expected a whole number)"),
        ({"number": None}, f"number: null{_NONE}(expected a whole number)"),
        ({"number": [1]}, f"number: a list{_NONE}(expected a whole number)"),
        ({"number": {"a": 1}}, f"number: a mapping{_NONE}(expected a whole number)"),
        ({"number": 2.0**70}, f"number: 1.1805916207174113e+21{_NONE}(expected a whole number of 64 bits)"),
        ({"fraction": "1.5"}, f"fraction: '1.5'{_NONE}(expected a number); leave out the quotes"),
        ({"fraction": "1e400"}, f"fraction: '1e400'{_NONE}(expected a number)"),
        ({"fraction": False}, f"fraction: false{_NONE}(expected a number)"),
        ({"text": 12}, f"text: 12{_NONE}(expected text); put it in quotes: '12'"),
        ({"text": True}, f"text: true{_NONE}(expected text); put it in quotes: 'true'"),
        ({"text": None}, f"text: null{_NONE}(expected text)"),
        ({"text": []}, f"text: a list{_NONE}(expected text)"),
        ({"truth": "yes"}, f"truth: 'yes'{_NONE}(expected true or false); did you mean true?"),
        ({"truth": "OFF"}, f"truth: 'OFF'{_NONE}(expected true or false); did you mean false?"),
        ({"truth": 1}, f"truth: 1{_NONE}(expected true or false)"),
        ({"nothing": 1}, f"nothing: 1{_NONE}(expected nothing)"),
        ({"word": "fats"}, "word: unknown value 'fats' (known: slow, fast, 3); did you mean 'fast'?"),
        ({"word": 4}, "word: unknown value 4 (known: slow, fast, 3)"),
        ({"word": None}, f"word: null{_NONE}(known: slow, fast, 3)"),
        ({"word": ["slow"]}, f"word: a list{_NONE}(known: slow, fast, 3)"),
        ({"colour": "rde"}, "colour: unknown value 'rde' (known: red, blue); did you mean 'red'?"),
        ({"colour": {}}, f"colour: a mapping{_NONE}(known: red, blue)"),
        ({"items": "1"}, f"items: '1'{_NONE}(expected a list)"),
        ({"items": [1, "2"]}, f"items[1]: '2'{_NONE}(expected a whole number); leave out the quotes"),
        ({"pair": [1]}, "pair[1]: is missing (the list is too short)"),
        ({"pair": [1, "a", 2]}, f"pair: a list{_NONE}(expected 2 or fewer items)"),
        ({"pair": ["x", "a"]}, f"pair[0]: 'x'{_NONE}(expected a whole number)"),
        ({"a_list": {}}, f"a_list: a mapping{_NONE}(expected a list)"),
        ({"a_set": 5}, f"a_set: 5{_NONE}(expected a list)"),
        ({"a_set": ["a", 1]}, f"a_set[1]: 1{_NONE}(expected text); put it in quotes: '1'"),
        ({"table": [1]}, f"table: a list{_NONE}(expected a mapping)"),
        ({"table": {"a.b": "x"}}, f"table.a.b: 'x'{_NONE}(expected a whole number)"),
        ({"limited": {"inn": 1}}, "limited.inn: unknown value 'inn' (known: in, out); did you mean 'in'?"),
        ({"ring": 5}, f"ring: 5{_NONE}(expected a mapping with kind, lanes)"),
        ({"ring": {}}, "ring.lanes: is missing (lanes is required)"),
        ({"ring": {"lanes": 1, "lane": 1}}, "ring.lane: unknown key (known: kind, lanes); did you mean 'lanes'?"),
        ({"ring": {"lanes": 1, "kind": "tree"}}, "ring.kind: unknown value 'tree' (known: ring)"),
        ({"ring": {"lanes": 0}}, "ring: 0 lanes (at least one (1) lane)"),
        ({"ring": {"lanes": 100}}, "ring: too many lanes (must be valid)"),
        ({"ring": {"lanes": 13}}, "ring: bad luck (must be valid)"),
        ({"shape": 5}, f"shape: 5{_NONE}(expected a mapping)"),
        ({"shape": {"lanes": 1}}, "shape.kind: is missing (known: ring, server, proxy)"),
        (
            {"shape": {"kind": "sevrer"}},
            "shape.kind: unknown value 'sevrer' (known: ring, server, proxy); did you mean 'server'?",
        ),
        ({"shape": {"kind": 5}}, "shape.kind: unknown value 5 (known: ring, server, proxy)"),
        ({"shape": {"kind": None}}, f"shape.kind: null{_NONE}(known: ring, server, proxy)"),
        ({"shape": {"kind": ["ring"]}}, f"shape.kind: a list{_NONE}(known: ring, server, proxy)"),
        # The field `lanes` has another type in each: the tag decides, and is no part of the path.
        ({"shape": {"kind": "ring", "lanes": "x"}}, f"shape.lanes: 'x'{_NONE}(expected a whole number)"),
        (
            {"shape": {"kind": "proxy", "lanes": 1}},
            f"shape.lanes: 1{_NONE}(expected text); put it in quotes: '1'",
        ),
        ({"shapes": [{"kind": "ring", "lanes": 0}]}, "shapes[0]: 0 lanes (at least one (1) lane)"),
        ({"shapes": [{"kind": "proxy", "ring": 0}]}, "shapes[0].ring: unknown key (known: kind, lanes, next)"),
        ({"rate": "5"}, "rate: '5' is no rate (write a rate such as '500 Mbit/s' or '25 GB/s')"),
        ({"rate": None}, "rate: None is no rate (write a rate such as '500 Mbit/s' or '25 GB/s')"),
        ({"rate": "(a (b) c"}, "rate: '(a (b) c' is no rate (write a rate such as '500 Mbit/s' or '25 GB/s')"),
        ({"number_or_text": 1.5}, f"number_or_text: 1.5{_NONE}(expected a whole number or text)"),
        ({"number_or_text": {"int": 1}}, f"number_or_text: a mapping{_NONE}(expected a whole number or text)"),
        (
            {"rate_or_auto": "atuo"},
            f"rate_or_auto: 'atuo'{_NONE}(write a rate such as '500 Mbit/s' or '25 GB/s' or auto)",
        ),
        (
            {"ring_or_text": 5},
            f"ring_or_text: 5{_NONE}(expected a mapping with kind, lanes or text or a list)",
        ),
        ({"ring_or_text": {"lanes": "x"}}, f"ring_or_text.lanes: 'x'{_NONE}(expected a whole number)"),
        ({"ring_or_text": [1, "x"]}, f"ring_or_text[1]: 'x'{_NONE}(expected a whole number)"),
        ({"shape_or_text": {}}, "shape_or_text.kind: is missing (known: ring, server, proxy)"),
        ({"shape_or_text": {"kind": "x"}}, "shape_or_text.kind: unknown value 'x' (known: ring, server, proxy)"),
        ({"shape_or_text": {"kind": "ring"}}, "shape_or_text.lanes: is missing (lanes is required)"),
        ({"shape_or_text": 1}, f"shape_or_text: 1{_NONE}(expected a mapping or text)"),
        # A choice within a choice.
        (
            {"server_or_number": {"kind": "proxy", "next": 5}},
            f"server_or_number.next: 5{_NONE}(expected a mapping with kind, lanes or text)",
        ),
        (
            {"server_or_number": {"kind": "proxy", "next": {}}},
            "server_or_number.next.lanes: is missing (lanes is required)",
        ),
        ({"above": 0}, f"above: 0{_NONE}(expected a number above 0)"),
        ({"above": 12}, f"above: 12{_NONE}(expected a number below 10)"),
        ({"above": 4}, f"above: 4{_NONE}(expected a multiple of 3)"),
        ({"between": -1}, f"between: -1{_NONE}(expected a number of 0.0 or more)"),
        ({"between": 1.5}, f"between: 1.5{_NONE}(expected a number of 1.0 or less)"),
        ({"short": ""}, f"short: ''{_NONE}(expected text of 1 or more characters)"),
        ({"short": "abcd"}, f"short: 'abcd'{_NONE}(expected text of 3 or fewer characters)"),
        ({"short": "A"}, f"short: 'A'{_NONE}(expected text that matches ^[a-z]*$)"),
        ({"few": []}, f"few: a list{_NONE}(expected 1 or more items)"),
        ({"few": [1, 2, 3]}, f"few: a list{_NONE}(expected 2 or fewer items)"),
    ],
)
def test_words(value: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        validation.validate(value, Everything)
    assert str(caught.value) == words


@pytest.mark.parametrize("value", [None, 5, "x", [], [{}]])
def test_the_whole_is_no_mapping(value: object) -> None:
    with pytest.raises(InputError, match=r"is not allowed here \(expected a mapping with kind, lanes\)$"):
        validation.validate(value, Ring)


def test_the_users_own_spelling() -> None:
    value = {"number": 1000.0, "truth": None, "text": 0.5, "word": None, "shape": {"kind": 50.0}}
    spellings = {
        ("number",): "1e3",
        ("truth",): "",
        ("text",): "0.50",
        ("word",): "~",
        ("shape", "kind"): "5e1",
    }
    with pytest.raises(InputError) as caught:
        validation.validate(value, Everything, spellings=spellings)
    assert str(caught.value).splitlines() == [
        f"number: 1e3{_NONE}(expected a whole number)",
        f"text: 0.50{_NONE}(expected text); put it in quotes: '0.50'",
        f"truth: an empty value{_NONE}(expected true or false)",
        f"word: ~{_NONE}(known: slow, fast, 3)",
        "shape.kind: unknown value 5e1 (known: ring, server, proxy)",
    ]


def test_what_is_long_is_cut() -> None:
    with pytest.raises(InputError) as caught:
        validation.validate({"number": "x" * 10_000, "k" * 10_000: 1, "rate": "y" * 10_000}, Everything)
    assert [len(line) < 500 for line in str(caught.value).splitlines()] == [True, True, True]


def test_a_value_that_is_right_is_taken_without_conversion() -> None:
    value = {
        "fraction": 3,
        "items": [1, 2],
        "a_set": ["a"],
        "colour": "blue",
        "shape": {"kind": "proxy"},
        "rate": "8 bit/s",
        "rate_or_auto": "auto",
        "anything": {"a": [1, None]},
    }
    assert validation.validate(value, Everything) == Everything(
        fraction=3.0,
        items=(1, 2),
        a_set=frozenset({"a"}),
        colour=Colour.BLUE,
        shape=Server(kind="proxy"),
        rate=1.0,
        rate_or_auto="auto",
        anything={"a": [1, None]},
    )


def test_a_finding_that_nobody_foresaw_keeps_its_words() -> None:
    with pytest.raises(InputError) as caught:
        validation.validate("x", dt.date)
    assert str(caught.value) == f"'x'{_NONE}(must be a valid date in the format YYYY-MM-DD, input is too short)"


def test_of_thousands_of_mistakes_the_first_are_told_and_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "_MOST_FINDINGS", 100)
    with pytest.raises(InputError) as raised:
        validation.validate({"name": "a", **{f"k{number}": 1 for number in range(500)}}, _Named)
    told = [str(problem) for problem in raised.value.problems]
    assert told[0] == "500 mistakes (only the first are looked at)"
    assert told[1].startswith("k0: unknown key")
    assert len(told) < 50
    # That a name is missing may come of what is left out; here it is missing.
    with pytest.raises(InputError) as raised:
        validation.validate({"items": [{}] * 500}, _Listed)
    assert "items[0].name: is missing (name is required)" in str(raised.value)


@dataclass(frozen=True)
class _Named:
    __pydantic_config__ = STRICT

    name: str


@dataclass(frozen=True)
class _Listed:
    __pydantic_config__ = STRICT

    items: tuple[_Named, ...]


def test_what_is_nested_more_deeply_than_the_parser_goes_is_refused() -> None:
    deep: object = 0
    for _ in range(250):
        deep = [deep]
    with pytest.raises(InputError, match="it is nested too deeply"):
        validation.validate({"name": deep}, dict[str, object])
