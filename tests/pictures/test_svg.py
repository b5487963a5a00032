"""The writer of SVG: its output is well-formed for any input, and always the same."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.pictures.lettering import clipped, text_width
from autosync.pictures.svg import Drawing, Pen, escaped, number
from autosync.pictures.theme import NUM_COLOURS, stylesheet

See = Callable[[str], Any]

HOSTILE = "<script>alert(1)</script>&\"' ]]> <!--"


@pytest.mark.parametrize(
    ("value", "text"), [(1, "1"), (1.25, "1.2"), (-0.01, "0"), (10.0, "10"), (3.96, "4"), (-2.5, "-2.5")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_place_is_a_defect(value: float) -> None:
    with pytest.raises(AssertionError):
        number(value)


@given(st.text())
def test_any_text_can_stand_in_a_picture(see: See, text: str) -> None:
    drawing = Drawing()
    drawing.text(1, 2, text, "ink")
    drawing.rectangle((0, 0), (1, 1), "box", tip=text)
    see(drawing.svg(10, 10, title=text, description=text))


def test_hostile_text_is_only_text(see: See) -> None:
    drawing = Drawing()
    drawing.text(1, 2, HOSTILE, "ink")
    drawing.rectangle((0, 0), (1, 1), "box", tip=HOSTILE)
    seen = see(drawing.svg(10, 10, title=HOSTILE, description=HOSTILE))
    assert seen.texts == [HOSTILE]
    assert seen.tips == [HOSTILE]


def test_what_xml_cannot_say_is_replaced() -> None:
    assert escaped("a\x00b\x1b\ud800c\ufffe") == "a\ufffdb\ufffd\ufffdc\ufffd"
    assert escaped("two\nlines\tand\x85more") == "two lines and more"


def test_a_drawing_is_the_same_each_time() -> None:
    def draw() -> str:
        drawing = Drawing()
        drawing.line((0, 0), (10, 1 / 3), "thin")
        drawing.underlay((0, 0), (1, 1), "thin")
        drawing.path(Pen().move(0, 0).arc(1, 2, 3, 4).bend((1, 1), 2, 2).close(), "line-0", width=1.5)
        return drawing.svg(10, 10, title="t", description="d")

    assert draw() == draw()
    assert 'd="M0 0A1 2 0 0 1 3 4Q1 1 2 2Z" stroke-width="1.5"' in draw()


def test_nothing_is_drawn_by_an_idle_pen() -> None:
    drawing = Drawing()
    drawing.path(Pen(), "line-0")
    assert "<path" not in drawing.svg(10, 10, title="t", description="d")


def test_every_message_has_a_colour_by_day_and_by_night() -> None:
    light, _, dark = stylesheet().partition("@media(prefers-color-scheme:dark)")
    for place in range(NUM_COLOURS + 1):
        assert f".line-{place}{{" in light
        assert f".fill-{place}{{" in dark


@given(st.text(max_size=300), st.floats(0, 400))
def test_what_is_clipped_fits(text: str, width: float) -> None:
    shown = clipped(text, width)
    assert text_width(shown) <= width
    assert shown == text or len(shown) <= len(text) or len(text) > 200


def test_names_keep_both_ends() -> None:
    shown = clipped("encoder.layers.11.attention.output.weight", 120)
    assert shown.startswith("encoder")
    assert shown.endswith("weight")
    assert clipped("weight", 1) == ""
    assert text_width(clipped("x" * 100_000, 200)) <= 200
