"""The picture of step times: a stroke for each, with every combination on the scale of its own stock DDP."""

import re
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from autosync.pictures.spread_picture import Spread, spread_picture

_times = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=20)


def spread(*seconds: float, default: float | None = 0.2, model: str = "m", cluster: str = "c") -> Spread:
    return Spread(model=model, cluster=cluster, seconds=seconds, default_seconds=default)


def strokes(picture: str) -> list[float]:
    """Where the strokes of the strategies are, from left to right."""
    return [
        float(x)
        for path in re.findall(r'<path class="line-0" d="([^"]*)"', picture)
        for x in re.findall(r"M([0-9.]+) ", path)
    ]


def test_every_time_is_a_stroke_and_faster_ones_lie_left() -> None:
    picture = spread_picture([spread(0.4, 0.1, 0.2)], title="all")
    places = strokes(picture)
    assert len(places) == 3
    assert places == sorted(places)
    # From a half to the default is as far as from there to twice as long.
    assert abs((places[1] - places[0]) - (places[2] - places[1])) < 0.2
    assert ">2.00</text>" in picture
    assert ">100 ms</text>" in picture


def test_models_head_their_rows_and_what_has_no_default_is_left_out() -> None:
    rows = [
        spread(0.1, model="a"),
        spread(0.1, model="a", cluster="d"),
        spread(0.1, default=None),
        spread(0.3, model="z"),
    ]
    picture = spread_picture(rows, title="<all>")
    assert [picture.count(f">{name}</text>") for name in ("a", "c", "d", "z")] == [1, 2, 1, 1]
    assert "1 without a measured default left out" in picture
    assert "&lt;all&gt;" in picture


def test_an_empty_dataset_has_a_picture() -> None:
    ET.fromstring(spread_picture([], title="none"))


@given(rows=st.lists(st.tuples(st.text(), _times, st.none() | st.floats(1e-6, 1e3)), max_size=4))
def test_anything_can_be_drawn(rows: list[tuple[str, list[float], float | None]]) -> None:
    spreads = [spread(*times, default=default, model=name, cluster=name) for name, times, default in rows]
    ET.fromstring(spread_picture(spreads, title="any"))
