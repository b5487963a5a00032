"""What a comparison says of its blocks, and what remains of it where loaders do not keep up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autosync.datasets.measured_input import MeasuredInput
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.compare import DEFAULT_DESIGN, compare
from autosync.trials.comparison import Comparison, best_of, confidence_of_each, faster_than_first, ratios_to_first
from autosync.trials.contestant import Contestant

LEAST = DEFAULT_DESIGN.least_difference


def _blocks(**seconds: float) -> dict[str, list[list[float]]]:
    rng = np.random.default_rng(7)
    return {name: (value * (1 + 0.002 * rng.standard_normal((12, 5)))).tolist() for name, value in seconds.items()}


def _compared(**seconds: float) -> Comparison:
    service = FakeService({name: FakeSteps(seconds=one, noise=0.01) for name, one in seconds.items()})
    return compare(service, [Contestant(name=name) for name in seconds])


def test_the_best_is_faster_than_each_of_the_others() -> None:
    two, three = confidence_of_each(2), confidence_of_each(3)
    assert best_of(_blocks(a=1.0, b=0.9, c=0.8), 0.0, confidence=two) == "c"
    assert best_of(_blocks(a=1.0, b=0.8, c=0.8), LEAST, confidence=two) is None
    assert faster_than_first(_blocks(a=1.0, b=0.8, c=0.8, d=1.1), 0.0, confidence=three) == ("b", "c")
    verdicts = [ratio.verdict for ratio in ratios_to_first(_blocks(a=1.0, b=0.8, d=1.1), 0.0)]
    assert verdicts == ["faster", "slower"]


def test_no_contestant_is_faster_than_its_loader() -> None:
    found = _compared(a=0.1, b=0.05, c=0.06)
    assert found.best == "b"
    limited = found.limited(0.08)
    assert [one.median_seconds for one in limited.measurements.values()] == pytest.approx([0.1, 0.08, 0.08], rel=0.01)
    assert limited.best is None
    assert limited.beats_first == ("b", "c")
    assert limited.between("b", "a").speedup.value == pytest.approx(1.25, rel=0.01)
    # The slowest is as it was measured, and the others wait for their batches.
    assert limited.measurements["a"] == found.measurements["a"]
    shorter = limited.measurements["b"]
    assert shorter.input is not None
    assert shorter.input.in_step
    assert shorter.input.wait_seconds == pytest.approx((0.03, 0.03), rel=0.05)
    assert np.mean(shorter.step_seconds) == pytest.approx(0.08)
    assert shorter.low_seconds <= shorter.median_seconds <= shorter.high_seconds


def test_who_waits_by_turns_takes_as_long_as_the_loader_in_the_mean() -> None:
    """A median of 0.12 s says as little as a mean of 0.09 s that contains batches which were read ahead."""
    found = _compared(a=0.2, b=0.12)
    waits = MeasuredInput(wait_seconds=(0.07, 0.01), in_step=True)
    steps = ((0.02, 0.12, 0.13),) * 2
    turned = replace(found.measurements["b"], step_seconds=steps, input=waits, flags=("drift", "busy_cpu"))
    limited = replace(found, measurements={**found.measurements, "b": turned}).limited(0.1)
    measured = limited.measurements["b"]
    assert (measured.low_seconds, measured.median_seconds, measured.high_seconds) == (0.1, 0.1, 0.1)
    assert measured.input is not None
    assert measured.input.wait_seconds == pytest.approx((0.08, 0.02))
    assert measured.flags == ("busy_cpu",)
    assert limited.between("b", "a").speedup.value == pytest.approx(2.0, rel=0.01)


def test_a_loader_that_keeps_up_limits_nothing() -> None:
    found = _compared(a=0.1, b=0.05)
    assert found.limited(0.01) == found


def test_a_comparison_is_a_table() -> None:
    service = FakeService({"a": FakeSteps(seconds=0.2), "<b>": FakeSteps(seconds=0.1)})
    found = compare(service, [Contestant(name="a"), Contestant(name="<b>")])
    frame = found.to_frame()
    assert list(frame["contestant"]) == ["a", "<b>"]
    assert frame["step_ms"].round(3).tolist() == [200.0, 100.0]
    assert np.isnan(frame["speedup"][0])
    assert frame["speedup"][1] == found.ratios[0].speedup.value
    shown = found._repr_html_()
    assert shown.startswith("<p>&lt;b&gt; is 2.000 times as fast as a (2.000 to 2.000).</p><table")
    assert "<b>" not in shown
