"""Timelines: traces of the runtime are read and others refused; the choice of steps; the drawing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.errors import DocumentError, InputError
from autosync.pictures.timeline_picture import MAX_LANES, figures, timeline_picture
from autosync.pictures.trace_file import NUM_WARMUP, RankTrace, Span, TracedStep, choose_steps, read_trace, steps_of
from autosync.runtime.engine.trace import COMPUTE, ComputeSpan, Trace

See = Callable[[str], Any]

HOSTILE = "<script>&\"'"


def span(kind: str, name: str, track: int, start: float, end: float, iteration: int = 0) -> Span:  # noqa: PLR0917 - as it is written in a trace
    return Span(kind, name, track, start, end, iteration)


def step_spans(number: int, start: float) -> list[Span]:
    """A step of 100 ms: 30 forward, 50 backward, 10 waiting, 10 for the optimizer, and a transfer."""
    return [
        span("compute", "forward", 0, start, start + 0.03, number),
        span("compute", "backward", 0, start + 0.03, start + 0.08, number),
        span("transfer", "all_reduce of w (operation 0)", 2, start + 0.05, start + 0.09, number),
        span("wait", "wait", 0, start + 0.08, start + 0.09, number),
        span("local", "average of w (operation 1)", 1, start + 0.088, start + 0.09, number),
        span("compute", "optimizer", 0, start + 0.09, start + 0.1, number),
    ]


def rank_of(*spans: Span, name: str = "rank 0 on here") -> RankTrace:
    tracks = {0: "training", 1: "local work", 2: "lane 0"}
    return RankTrace(name=name, tracks=tracks, spans=tuple(sorted(spans, key=lambda one: one.start)))


def training(num_steps: int) -> RankTrace:
    return rank_of(*[one for number in range(num_steps) for one in step_spans(number, 0.1 * number)])


def event(**fields: Any) -> dict[str, Any]:
    whole = {"ph": "X", "name": "forward", "cat": "compute", "pid": 0, "tid": 0, "ts": 1e6, "dur": 2e6}
    return {**whole, "args": {"iteration": 0}, **fields}


def test_what_the_runtime_writes_is_read(tmp_path: Path) -> None:
    import torch

    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trace = Trace(tmp_path / "t.json", rank=3, host="here")
    trace.name_thread(2, "lane 0")
    compute = ComputeSpan(trace, model, optimizer)
    for number in range(3):
        model(torch.ones(1, 3)).sum().backward()
        trace.add("transfer", "all_reduce of w (operation 7)", 2, 0, iteration=number)
        compute.backward_ends()
        optimizer.step()
    compute.close()
    (rank,) = read_trace(tmp_path / "t.json")
    assert rank.name == "rank 3 on here"
    assert rank.tracks == {COMPUTE: "training", 2: "lane 0"}
    assert [step.iteration for step in steps_of(rank)] == [0, 1]
    assert {one.kind for one in rank.spans} == {"compute", "transfer"}


def test_what_a_crash_leaves_is_read(tmp_path: Path) -> None:
    lines = [json.dumps(event(ts=number * 1e6)) for number in range(3)]
    whole = "[\n" + ",\n".join(lines)
    for text in (whole + ",\n", whole + ',\n{"ph": "X", "na', whole + "\n]\n", f'{{"traceEvents": {whole}]}}'):
        (tmp_path / "t.json").write_text(text)
        (rank,) = read_trace(tmp_path / "t.json")
        assert len(rank.spans) == 3


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ("3", "it holds no array of events"),
        ("[]", "nothing of training is in it"),
        (json.dumps([event(cat="kernel")]), "nothing of training is in it"),
        (json.dumps([event(ts=None)]), "the event 'forward' lacks ts"),
        (json.dumps([event(dur=float("nan"))]), "the event 'forward' lacks ts"),
        (json.dumps([event(ts=10**400)]), "the event 'forward' lacks ts"),
        (json.dumps([event(args={})]), "the event 'forward' lacks ts"),
        (json.dumps([event(dur=-1.0)]), "the event 'forward' lacks ts"),
    ],
)
def test_what_is_no_timeline_is_refused(text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(DocumentError, match=r"t\.json") as refused:
        read_trace(path)
    assert what in str(refused.value)


def test_a_missing_file_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"none\.json.*No such file"):
        read_trace(tmp_path / "none.json")


def test_a_step_lasts_to_the_next_one() -> None:
    steps = steps_of(training(3))
    assert [step.iteration for step in steps] == [0, 1]
    assert steps[1].start == pytest.approx(0.1)
    assert steps[1].end == pytest.approx(0.2)
    (alone,) = steps_of(training(1))
    assert alone.end == pytest.approx(0.1)


def test_ordinary_steps_are_chosen() -> None:
    starts = [0.0, 0.5, 0.6, 0.7, 0.8, 1.4, 1.5, 1.6]
    rank = rank_of(*[one for number, start in enumerate(starts) for one in step_spans(number, start)])
    chosen = choose_steps(rank, 1)
    assert chosen[0].iteration >= NUM_WARMUP
    assert chosen[0].iteration != 4
    assert [step.iteration for step in choose_steps(rank, 2, first=4)] == [4, 5]


def test_where_ranks_meet_now_and_then_a_meeting_is_chosen() -> None:
    spans = [
        one
        for number in range(14)
        for one in step_spans(number, 0.1 * number)
        if one.kind != "transfer" or number % 4 == 3
    ]
    assert 7 in {step.iteration for step in choose_steps(rank_of(*spans), 2)} | {
        step.iteration + 4 for step in choose_steps(rank_of(*spans), 2)
    }
    assert any(step.iteration % 4 == 3 for step in choose_steps(rank_of(*spans), 2))


def test_steps_that_are_not_there_are_refused() -> None:
    with pytest.raises(InputError, match=r"2 steps from 9 on \(whole in it are the steps 0 to 3\)"):
        choose_steps(training(5), 2, first=9)
    with pytest.raises(InputError, match="shows no step"):
        choose_steps(rank_of(span("local", "x", 1, 0, 1)), 2)
    assert len(choose_steps(training(3), 50)) == 2


def test_figures_are_of_the_steps_shown() -> None:
    rank = training(6)
    shown = figures(rank, choose_steps(rank, 2))
    assert shown.num_steps == 2
    assert shown.seconds == pytest.approx(0.2)
    assert shown.wait_seconds == pytest.approx(0.02)
    assert shown.transfer_seconds == pytest.approx(0.08)


def test_overlapping_transfers_count_once() -> None:
    rank = rank_of(*step_spans(0, 0.0), span("transfer", "x", 3, 0.04, 0.06))
    assert figures(rank, (TracedStep(0, 0.0, 0.1),)).transfer_seconds == pytest.approx(0.05)


def test_a_step_has_its_tracks_and_names(see: See) -> None:
    seen = see(timeline_picture([training(6)], choose_steps(training(6), 1), title="a title", subtitle="measured"))
    for words in ("training", "local work", "lane 0: all_reduce", "forward", "backward", "a title"):
        assert words in seen.texts
    assert "measured · 100 ms a step · training stands still for 10% of it" in seen.texts
    rectangles = seen.count("rect")
    # One of each is a sample in the legend.
    assert (rectangles["forward"], rectangles["backward"], rectangles["wait"]) == (2, 2, 2)
    assert (rectangles["fill-0"], rectangles["fill-0 own"]) == (2, 1)
    assert "all_reduce of w (operation 0): 40 ms" in seen.tips


def test_ranks_are_drawn_below_each_other(see: See) -> None:
    other = rank_of(*training(6).spans, name="rank 1 on there")
    seen = see(timeline_picture([training(6), other], choose_steps(training(6), 1), title="both"))
    assert seen.texts.index("rank 0 on here") < seen.texts.index("rank 1 on there")
    assert seen.texts.count("local work") == 2


def test_colours_follow_the_plan(see: See) -> None:
    """The first message of the plan has the first colour, whichever begins first."""
    spans = [
        *step_spans(0, 0.0)[:2],
        span("transfer", "all_reduce of late (operation 4)", 2, 0.01, 0.02),
        span("transfer", "all_reduce of early (operation 0)", 3, 0.03, 0.08),
    ]
    seen = see(timeline_picture([rank_of(*spans)], (TracedStep(0, 0.0, 0.1),), title="t"))
    order = [words for words in seen.texts if words in ("early", "late")]
    assert order[-2:] == ["early", "late"]


def test_many_lanes_and_messages_stay_readable(see: See) -> None:
    spans = step_spans(0, 0.0) + [
        span("transfer", f"{'reduce' if i % 2 else 'broadcast'} of v{i} (operation {i})", 2 + i, 0.01, 0.02)
        for i in range(60)
    ]
    seen = see(timeline_picture([rank_of(*spans)], (TracedStep(0, 0.0, 0.1),), title="t"))
    assert f"and {60 - MAX_LANES} more tracks" in seen.texts
    assert {"reduce", "broadcast"} <= set(seen.texts)


def test_names_are_only_text(see: See) -> None:
    rank = rank_of(*step_spans(0, 0.0), span("transfer", f"reduce of {HOSTILE} (operation 3)", 9, 0, 0.1), name=HOSTILE)
    text = timeline_picture([rank, rank], (TracedStep(0, 0.0, 0.1),), title=HOSTILE, subtitle=HOSTILE)
    assert "<script" not in text
    assert HOSTILE in see(text).texts


TIMES = st.floats(0, 5, allow_nan=False)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(("compute", "wait", "transfer", "local")),
            st.text(max_size=20),
            st.integers(0, 5),
            TIMES,
            TIMES,
        ),
        max_size=30,
    ),
    st.floats(1e-9, 1e4),
)
def test_any_timeline_can_be_drawn(see: See, drawn: list[tuple[str, str, int, float, float]], seconds: float) -> None:
    spans = [span(kind, name, track, start, start + length) for kind, name, track, start, length in drawn]
    text = timeline_picture([rank_of(*spans)], (TracedStep(0, 0.0, seconds),), title="t")
    see(text)
    assert text == timeline_picture([rank_of(*spans)], (TracedStep(0, 0.0, seconds),), title="t")


def test_the_queues_of_a_lane_are_told_apart_by_what_they_do(see: See) -> None:
    spans = [
        *step_spans(0, 0.0)[:2],
        span("transfer", "reduce of w (operation 4)", 5, 0.03, 0.06),
        span("transfer", "broadcast of w (operation 5)", 6, 0.06, 0.09),
    ]
    tracks = {0: "training", 5: "lane 1, stage 0", 6: "lane 1, stage 1"}
    rank = RankTrace(name="rank 0 on here", tracks=tracks, spans=tuple(spans))
    seen = see(timeline_picture([rank], (TracedStep(0, 0.0, 0.1),), title="t"))
    assert {"lane 1: reduce", "lane 1: broadcast"} <= set(seen.texts)
