"""Rank 0's program when a loop is tuned: a sample of one epoch, predictions, and runs to the loss in turn.

1. Sample: one epoch of a schedule with the serial result, and one of each data-parallel schedule. It gives the seconds
   of a record and of an epoch, and how much of the serial program's progress an epoch of merging makes.
2. Prediction: the seconds to the loss, for all schedules.
3. Proof: the best ones run to the loss, in turn, several times. The first has the serial result; its loss after the
   given number of epochs is the goal, unless the user gives one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autosync import units
from autosync.errors import OperationError
from autosync.loops.choosing import choose
from autosync.loops.peers import Peers
from autosync.loops.rank_program import EpochReport, LoopResult, PreparedLoop, run_prepared, settings_of
from autosync.loops.rank_run import LoopSettings
from autosync.loops.schedules import LoopSchedule, ScheduleChoice
from autosync.loops.tuning.candidates import ONE_RANK, exact_candidates, server_candidates, words_of_choice
from autosync.loops.tuning.prediction import LoopCosts, RankLinks, predict_epoch

GOAL_SLACK = 0.005
"""A loss up to this share above the goal counts as reached: serial orders of records differ by about as much."""

PATIENCE = 3
"""A run gets so many times the epochs of the serial program to reach the goal."""

GIVES_UP_AT = 1.5
"""A run ends when it has taken so many times the best time so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningOrders:
    """What the user asked for. Without `goal`, the goal is the serial program's loss after `num_epochs`."""

    settings: LoopSettings
    links: RankLinks
    goal: float | None = None
    num_finalists: int = 4
    num_rounds: int = 2
    budget_seconds: float | None = None


@dataclass(slots=True, kw_only=True)
class TriedSchedule:
    """A schedule in the contest. `seconds` has the time to the goal of each run that reached it.

    `is_exact` says that its result is that of a serial run. `progress` is the progress of its first epoch, compared
    with the serial program's. `why_not` says why it is not in the proof, or why it did not reach the goal.
    """

    choice: ScheduleChoice
    is_exact: bool = True
    progress: float = 1.0
    predicted_epoch_seconds: float = math.inf
    predicted_seconds: float = math.inf
    is_sampled: bool = False
    is_finalist: bool = False
    num_epochs: int = 0
    epoch_seconds: float = math.nan
    seconds: list[float] = field(default_factory=list)
    why_not: str = ""

    @property
    def mean_seconds(self) -> float:
        return sum(self.seconds) / len(self.seconds) if self.seconds else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestResult:
    """The outcome: all contestants, the winner first, then the other finalists, then by prediction."""

    goal: float
    initial_loss: float
    num_epochs: int
    num_rounds: int
    is_proven: bool
    contestants: list[TriedSchedule]


def tuning_orders_of(told: Mapping[str, Any]) -> TuningOrders:
    """Return orders that were sent as plain values."""
    links = RankLinks(**{name: tuple(values) for name, values in told["links"].items()})
    return TuningOrders(**{**told, "settings": settings_of(told["settings"]), "links": links})


def tune_prepared(
    peers: Peers, prepared: PreparedLoop, orders: TuningOrders, say: Callable[[str], None]
) -> ContestResult:
    """Tune a loop on these ranks. `say` receives a line about each run."""
    return _Contest(peers, prepared, orders, say).run()


class _Contest:
    def __init__(self, peers: Peers, prepared: PreparedLoop, orders: TuningOrders, say: Callable[[str], None]) -> None:
        self._peers = peers
        self._prepared = prepared
        self._orders = orders
        self._say = say
        self._begun = time.monotonic()
        tables = prepared.initial_tables(orders.settings.seed)
        self._initial_loss = prepared.loss_of(prepared.records, tables)

    def run(self) -> ContestResult:
        analysis, records = self._prepared.analysis, self._prepared.records
        num_ranks = self._peers.num_ranks
        exact = [TriedSchedule(choice=choice) for choice in exact_candidates(analysis, records, num_ranks)]
        serial = TriedSchedule(choice=ONE_RANK)
        servers = [TriedSchedule(choice=one) for one in server_candidates(analysis, records, num_ranks)]
        if analysis.buffered:
            # Buffered tables change the result of every schedule on several ranks.
            exact, servers = [], [*exact, *servers]
        for one in servers:
            one.is_exact = False
        self._sample(exact, serial, servers)
        tried = [*exact, serial, *servers]
        finalists = self._finalists([*exact, serial], servers)
        goal = self._prove(finalists)
        ranked = sorted(tried, key=lambda one: (not one.is_finalist, one.mean_seconds, one.predicted_seconds))
        others = [one for one in ranked[1:] if one.seconds]
        is_proven = bool(others) and all(max(ranked[0].seconds) < min(one.seconds) for one in others)
        return ContestResult(
            goal=goal,
            initial_loss=self._initial_loss,
            num_epochs=self._orders.settings.num_epochs,
            num_rounds=self._orders.num_rounds,
            is_proven=is_proven,
            contestants=ranked,
        )

    def _sample(self, exact: list[TriedSchedule], serial: TriedSchedule, servers: list[TriedSchedule]) -> None:
        """Run an epoch of a schedule with the serial result and of each data-parallel one, and predict all times."""
        first = exact[0] if exact else serial
        result = self._epoch(first)
        gain = self._initial_loss - result.losses[0]
        if not gain > 0:
            what = f"the loss does not fall in the first epoch: {self._initial_loss:.6g}, then {result.losses[0]:.6g}"
            raise OperationError(what)
        self._predict([*exact, serial], first, result)
        for one in servers:
            loss = self._epoch(one).losses[0]
            one.progress = (self._initial_loss - loss) / gain
            one.predicted_epoch_seconds = one.epoch_seconds
            if not one.progress > 0:
                one.why_not = f"its loss does not fall: {loss:.6g} after an epoch"
                continue
            one.predicted_seconds = self._orders.settings.num_epochs * one.epoch_seconds / min(1.0, one.progress)

    def _epoch(self, one: TriedSchedule) -> LoopResult:
        settings = replace(self._orders.settings, num_epochs=1, choice=one.choice)
        result = run_prepared(self._peers, self._prepared, settings, lambda _: True)
        one.is_sampled, one.epoch_seconds = True, result.seconds
        self._say(f"sample: {words_of_choice(one.choice)}: {_words(result.seconds, result.losses[0])}")
        return result

    def _predict(self, exact: list[TriedSchedule], first: TriedSchedule, result: LoopResult) -> None:
        """Predict the seconds of schedules with the serial result, from the costs that one of them showed."""
        busy = [one.compute_seconds / one.num_records for one in result.times if one.num_records]
        mean = sum(busy) / len(busy) if busy else 0.0
        costs = LoopCosts(
            record_seconds=tuple(
                one.compute_seconds / one.num_records if one.num_records else mean for one in result.times
            )
        )
        missed = result.seconds - self._epoch_seconds(first.choice, costs)
        num_blocks = max(1, result.schedule.num_rotating)
        costs = replace(costs, block_seconds=max(0.0, missed) / num_blocks)
        for one in exact:
            seconds = result.seconds if one is first else self._epoch_seconds(one.choice, costs)
            one.predicted_epoch_seconds = seconds
            one.predicted_seconds = self._orders.settings.num_epochs * seconds

    def _epoch_seconds(self, choice: ScheduleChoice, costs: LoopCosts) -> float:
        analysis, records = self._prepared.analysis, self._prepared.records
        schedule = choose(analysis, records, self._peers.num_ranks, choice)
        assert isinstance(schedule, LoopSchedule), "candidates have schedules"
        return predict_epoch(analysis, schedule, records, costs, self._orders.links)

    def _finalists(self, exact: list[TriedSchedule], servers: list[TriedSchedule]) -> list[TriedSchedule]:
        """Return the schedules to prove: the best with the serial result, the best other one, then the next best."""
        ranked = sorted(exact, key=lambda one: one.predicted_seconds)
        usable = sorted(
            (one for one in servers if math.isfinite(one.predicted_seconds)), key=lambda one: one.predicted_seconds
        )
        found = [ranked[0], *usable[:1]]
        rest = sorted([*ranked[1:], *usable[1:]], key=lambda one: one.predicted_seconds)
        found += rest[: max(0, self._orders.num_finalists - len(found))]
        for one in found:
            one.is_finalist = True
        return found

    def _prove(self, finalists: list[TriedSchedule]) -> float:
        """Run the finalists to the goal in turn, and return the goal."""
        reference = finalists[0]
        goal, reports = self._run_reference(reference)
        self._note(reference, reports, goal)
        for number in range(self._orders.num_rounds):
            for one in finalists:
                if one.why_not or (number == 0 and one is reference) or self._is_over_budget(one):
                    continue
                # One that has reached the goal before will reach it again, so its time is wanted.
                best = math.inf if one.seconds else min(min(other.seconds, default=math.inf) for other in finalists)
                most = PATIENCE * self._orders.settings.num_epochs
                self._note(one, self._to_goal(one, goal, best, most), goal)
        return goal

    def _run_reference(self, reference: TriedSchedule) -> tuple[float, list[EpochReport]]:
        """Run the best schedule with the serial result. Return the goal and the reports."""
        orders = self._orders
        reports = self._to_goal(reference, orders.goal, math.inf, orders.settings.num_epochs)
        last = _loss(reports[-1])
        if not math.isfinite(last):
            raise OperationError(
                f"the loss is {last:.6g} after {_epochs(reports)} of {words_of_choice(reference.choice)}; name fewer"
                " epochs (--epochs), or change the loop so that its loss stays finite"
            )
        if orders.goal is None:
            return last, reports
        if _first_within(reports, orders.goal) is None:
            raise OperationError(
                f"the loss {orders.goal:.6g} is not reached in {len(reports)} epochs: it is {last:.6g} then; name more "
                "epochs (--epochs) or a higher goal (--goal)"
            )
        return orders.goal, reports

    def _note(self, one: TriedSchedule, reports: list[EpochReport], goal: float) -> None:
        """Note the time to the goal, or that it was not reached."""
        reached = _first_within(reports, goal)
        if reached is not None:
            one.seconds.append(reached.seconds)
            one.num_epochs = reached.number
        else:
            one.seconds.clear()
            seconds = units.format_time(reports[-1].seconds)
            one.why_not = f"given up at loss {_loss(reports[-1]):.6g} after {seconds}"

    def _is_over_budget(self, one: TriedSchedule) -> bool:
        limit = self._orders.budget_seconds
        is_over = limit is not None and time.monotonic() - self._begun >= limit
        if is_over and not one.seconds:
            one.why_not = "not run: the time was over"
        return is_over

    def _to_goal(self, one: TriedSchedule, goal: float | None, best: float, num_epochs: int) -> list[EpochReport]:
        """Run one to the goal, or until it is given up. Return its reports."""
        limit = -math.inf if goal is None else _limit(goal)
        reports: list[EpochReport] = []

        def goes_on(report: EpochReport) -> bool:
            reports.append(report)
            loss = _loss(report)
            return loss > limit and math.isfinite(loss) and report.seconds <= GIVES_UP_AT * best

        settings = replace(self._orders.settings, num_epochs=num_epochs, choice=one.choice)
        result = run_prepared(self._peers, self._prepared, settings, goes_on)
        one.epoch_seconds = result.seconds / len(reports)
        loss = _loss(reports[-1])
        self._say(f"{words_of_choice(one.choice)}: {_words(result.seconds, loss)} after {_epochs(reports)}")
        return reports


def _limit(goal: float) -> float:
    return goal + GOAL_SLACK * abs(goal)


def _first_within(reports: list[EpochReport], goal: float) -> EpochReport | None:
    return next((one for one in reports if math.isfinite(_loss(one)) and _loss(one) <= _limit(goal)), None)


def _loss(report: EpochReport) -> float:
    assert report.loss is not None, "the loop has a loss"
    return report.loss


def _epochs(reports: list[EpochReport]) -> str:
    return "1 epoch" if len(reports) == 1 else f"{len(reports)} epochs"


def _words(seconds: float, loss: float) -> str:
    return f"{units.format_time(seconds)}, loss {loss:.6g}"
