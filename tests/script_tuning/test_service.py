"""Contestants on a running script: which steps are asked for, and which of them are samples."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from autosync.errors import OperationError
from autosync.inputs.process_input import InputSums
from autosync.script_tuning.input_waits import InputWaits
from autosync.script_tuning.launch import ScriptRanks
from autosync.script_tuning.service import ScriptTrials
from autosync.trials.contestant import Contestant
from autosync.trials.failures import TrialFailed
from autosync.trials.measured_inputs import mean_input
from autosync.trials.periods import PeriodService

NOTHING = InputSums().to_plain()


class _Script:
    """Two ranks of a script, whose steps take as many seconds as their number; some of them are disturbed."""

    def __init__(
        self,
        *,
        disturbances: Callable[[int], list[str]] = lambda _: [],
        wait_seconds: float = 0.5,
        lost_share: float = 0.0,
        num_ahead: int = 0,
        num_left: int = 0,
        seconds_each: float = 1.0,
    ) -> None:
        self.asked: list[tuple[str, int]] = []
        self.refuses: str | None = None
        self._disturbances = disturbances
        self._wait_seconds = wait_seconds
        self._lost_share = lost_share
        self._num_ahead = num_ahead
        self._num_left = num_left
        self._seconds_each = seconds_each
        self._num_steps = 0

    def ask(self, request: str, fields: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        count = fields.get("num_steps", 0)
        self.asked.append((request, count))
        if self.refuses is not None:
            raise TrialFailed("refused", self.refuses)
        steps = range(self._num_steps, self._num_steps + count)
        self._num_steps += count
        return [
            {
                "step_seconds": [self._seconds_each * (step + rank) for step in steps],
                "gap_seconds": [0.0 for _ in steps],
                "disturbances": [self._disturbances(step) for step in steps],
                "wait_seconds": [self._wait_seconds for _ in steps],
                "lost_shares": [self._lost_share * rank for _ in steps],
                "num_left": [self._num_left for _ in steps],
                "num_ahead": self._num_ahead,
                "input": {**NOTHING, "num_batches": count, "read_seconds": 0.25 * count, "hosts": {"s": [10, 2.0]}},
                "cpu_share": 0.25 * (rank + 1),
                "bytes_sent": 10 * count,
                "bytes_received": None,
                "peak_memory_bytes": 100 + rank,
            }
            for rank in range(2)
        ]

    def train(self, fields: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
        return None if self.refuses is not None else self.ask("train", fields)

    def trials(self, *, most_spared: int | None = None) -> ScriptTrials:
        """The service after nine observed steps."""
        observed = self.ask("observe", {"num_steps": 9})
        self.asked.clear()
        trials = ScriptTrials(cast("ScriptRanks", self), observed=cast("Any", observed), most_spared=most_spared)
        trials.prepare(Contestant(name="stock"))
        return trials


def test_the_present_strategy_runs_as_many_steps_as_are_wanted() -> None:
    script = _Script()
    trials = script.trials()
    samples = trials.run("stock", 3)
    assert script.asked == [("run", 3)]
    assert samples.step_seconds == ((9.0, 10.0, 11.0), (10.0, 11.0, 12.0))
    assert samples.cpu_share == 0.5
    assert samples.bytes_sent == (30, 30)
    assert samples.bytes_received is None
    assert samples.peak_memory_bytes == (100, 101)
    measured = mean_input([samples.inputs], 3)
    assert measured is not None
    assert (measured.wait_seconds, measured.read_seconds) == ((0.5, 0.5), (0.25, 0.25))
    assert measured.request_rates == {"s": 5.0}
    assert measured.in_step
    assert trials.input_waits == InputWaits(step_seconds=10.5, wait_seconds=0.5)
    assert trials.num_steps == 12


@pytest.mark.parametrize(("wait_seconds", "centre"), [(0.5, "mean"), (0.01, "median")])
def test_steps_that_wait_for_loaders_are_compared_by_their_means(wait_seconds: float, centre: str) -> None:
    periods = PeriodService(_Script(wait_seconds=wait_seconds).trials())
    periods.prepare(Contestant(name="stock"))
    assert periods.centre("stock") == centre
    assert periods.steps_each("stock") == 1


def test_steps_that_do_not_count_are_made_up_for() -> None:
    script = _Script(disturbances=lambda step: ["model_state"] if step == 10 else [])
    samples = script.trials().run("stock", 3)
    # One step is missing, and the first of a further run does not count.
    assert script.asked == [("run", 3), ("run", 2)]
    assert samples.step_seconds[0] == (9.0, 11.0, 13.0)


def test_a_script_that_always_does_something_else_cannot_be_tuned() -> None:
    script = _Script(disturbances=lambda step: [("evaluation", "model_state", "optimizer_state")[step % 3]])
    with pytest.raises(OperationError, match=r"0 of .* steps of the script count: in the others it evaluates"):
        script.trials().run("stock", 3)


def test_a_script_that_averages_its_weights_in_each_step_is_tuned() -> None:
    script = _Script(disturbances=lambda _: ["model_state", "bare_forward"])
    assert script.trials().run("stock", 3).step_seconds[0] == (9.0, 10.0, 11.0)
    assert script.asked == [("run", 3)]


def test_after_a_refusal_the_next_strategy_is_put_in_place_anew() -> None:
    script = _Script()
    trials = script.trials()
    script.refuses = "no"
    with pytest.raises(TrialFailed, match="no"):
        trials.run("stock", 2)
    script.refuses = None
    trials.run("stock", 2)
    assert script.asked[1:] == [("run", 2)]


def test_the_script_goes_on_while_something_is_worked_out() -> None:
    script = _Script()
    trials = script.trials()
    is_enough = threading.Event()

    def ask(request: str, fields: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        if len(script.asked) == 3:
            is_enough.set()
        return _Script.ask(script, request, fields)

    script.ask = ask  # type: ignore[method-assign]
    assert trials.train_while(lambda: is_enough.wait(10), None) is True
    assert len(script.asked) >= 4
    assert {request for request, _ in script.asked} == {"run"}


def test_a_script_with_few_steps_to_spare_waits() -> None:
    script = _Script()
    trials = script.trials(most_spared=60)
    with pytest.raises(ZeroDivisionError):
        trials.train_while(lambda: 1 // 0, None)
    release = threading.Event()
    threading.Timer(0.2, release.set).start()
    trials.train_while(release.wait, None)
    assert trials.num_steps <= 9 + 60 + 60


STOCK = Contestant(name="stock")


def test_a_script_whose_loaders_have_no_workers_needs_no_long_run() -> None:
    script = _Script()
    assert script.trials().sustained(STOCK) is None
    assert script.asked == []


def test_loaders_keep_up_where_steps_neither_wait_nor_use_up_what_was_read_ahead() -> None:
    script = _Script(num_ahead=4, wait_seconds=0.0, lost_share=0.4)
    trials = script.trials()
    trials.run("stock", 1)
    # 2.8 of 7 batches may be missing by chance. Steps of 9 s are long, so it does not make 20 of them.
    assert trials.sustained(STOCK) is None
    assert script.asked == [("run", 1), ("run", 14)]


def test_taking_a_batch_that_is_ready_is_no_wait_for_the_loader() -> None:
    script = _Script(num_ahead=4, wait_seconds=0.05, num_left=3, seconds_each=0.01)
    trials = script.trials()
    trials.run("stock", 1)
    assert trials.sustained(STOCK) is None


@pytest.mark.parametrize(("wait_seconds", "lost_share"), [(0.0, 0.4), (0.05, 0.0)])
def test_a_step_is_no_faster_than_the_batches_that_are_made(wait_seconds: float, lost_share: float) -> None:
    """The second half of 40 steps after ten others takes 0.3 to 0.49 s on one rank, 0.01 s more on the other."""
    script = _Script(num_ahead=4, wait_seconds=wait_seconds, lost_share=lost_share, seconds_each=0.01)
    trials = script.trials()
    trials.run("stock", 1)
    assert trials.sustained(STOCK) == pytest.approx(0.4 / (1 - lost_share))
    assert [count for _, count in script.asked] == [1, 16, 16, 8]


def test_a_watched_script_goes_on_in_pieces_of_a_second() -> None:
    script = _Script(disturbances=lambda step: ["model_state"] if step == 20 else [])
    trials = script.trials()
    # A step takes as long as on its slowest rank, without the wait of 0.5 s. The disturbed one does not count.
    assert trials.train_on(None) == [9.5, 10.5, 11.5, 12.5, 13.5, 14.5, 15.5, 16.5]
    assert trials.train_on(None) == [17.5, 18.5, 19.5, 21.5, 22.5, 23.5, 24.5]
    assert script.asked == [("train", 8), ("train", 8)]
    assert trials.num_steps == 25
    script.refuses = "it has ended"
    assert trials.train_on(None) is None
