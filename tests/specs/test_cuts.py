"""An exhaustive search finds the same even stages."""

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.specs.cuts import StageCut, check_cuts, even_stages, segment_seconds
from autosync.specs.model import Segment


@dataclass(frozen=True)
class _Line:
    forward: tuple[Segment, ...]
    backward: tuple[Segment, ...]
    cuts: tuple[StageCut, ...]


def _line(forward: list[int], sizes: list[int]) -> _Line:
    segments = tuple(Segment(module=f"m{i}", seconds=seconds) for i, seconds in enumerate(forward))
    cuts = tuple(StageCut(before=i + 1, num_bytes=size) for i, size in enumerate(sizes[: len(forward) - 1]))
    return _Line(forward=segments, backward=(), cuts=cuts)


@given(
    forward=st.lists(st.integers(0, 9), min_size=1, max_size=7),
    sizes=st.lists(st.integers(0, 5), min_size=6, max_size=6),
    num_stages=st.integers(1, 4),
)
def test_no_other_division_is_better(forward: list[int], sizes: list[int], num_stages: int) -> None:
    line = _line(forward, sizes)
    found = even_stages(line, num_stages)
    if len(forward) < num_stages:
        assert found is None
        return
    assert found is not None
    others = []
    for places in itertools.combinations(line.cuts, num_stages - 1):
        ends = [0, *[cut.before for cut in places], len(forward)]
        slowest = max(sum(forward[begin:end]) for begin, end in itertools.pairwise(ends))
        others.append((slowest, sum(cut.num_bytes for cut in places)))
    assert (max(found.seconds), found.num_bytes) == min(others)
    assert sum(found.seconds) == sum(forward)


def test_the_backward_pass_counts_with_its_module() -> None:
    line = _Line(
        forward=tuple(Segment(module=name, seconds=1.0) for name in ("a", "b", "a")),
        backward=(Segment(module="a", seconds=4.0), Segment(module="b", seconds=2.0)),
        cuts=(),
    )
    assert segment_seconds(line) == [3.0, 3.0, 3.0]


def test_the_head_that_is_tied_to_an_embedding_has_its_share_of_the_backward_pass() -> None:
    # The gradient of the tied weight is ready with the embedding, so the first segment behind the loss is the norm's.
    forward = [Segment(module=name, seconds=seconds) for name, seconds in (("table", 1), ("norm", 1), ("head", 3))]
    backward = [Segment(module=name, seconds=seconds) for name, seconds in (("norm", 8), ("table", 2))]
    line = _Line(forward=tuple(forward), backward=tuple(backward), cuts=())
    assert segment_seconds(line) == [3.0, 3.0, 9.0]


def test_cuts_outside_the_pass_are_refused() -> None:
    with pytest.raises(ValueError, match="within the pass"):
        check_cuts((StageCut(before=3, num_bytes=1),), "", 3)
    with pytest.raises(ValueError, match="one of them"):
        check_cuts((StageCut(before=1, num_bytes=1),), "reads a value", 3)
