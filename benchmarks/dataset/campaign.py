"""A running campaign: it visits one combination after another, in rounds, and stores each trial before the next.

A round gives each combination a visit of some trials, so that all combinations have some records early on. A visit
begins and ends with the reference. Whatever ends a campaign, its measurements are kept, and the next run continues
after them.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from autosync.datasets.facts import cluster_spec, model_spec
from autosync.datasets.machine_drift import AGAIN_ORIGIN, REFERENCE_ORIGIN, combination_of, flag_drift, is_reference
from autosync.datasets.reliability import is_worth_repeating, most_reliable
from autosync.datasets.schema import Measurement, Record
from autosync.datasets.store import RecordStore
from autosync.errors import OperationError
from autosync.search.measurement_effort import Effort
from autosync.search.prepared_trial import TrialPreparer
from autosync.search.trial_runner import TrialRunner
from autosync.trials.samples import Service
from benchmarks import shared
from benchmarks.dataset.campaign_plan import Campaign, Combination
from benchmarks.dataset.proposals import Proposal, Proposals

TIMES_AGAIN = 2
"""The number of further measurements of a strategy that is to be repeated."""
MAX_LAUNCH_FAILURES = 3
MAX_FAILURES_IN_A_ROW = 8
MAX_DISTURBED = 3
"""The number of attempts at a trial while other programs are busy; the last one counts, and is flagged."""
RATE_TRIALS = 200
"""The number of last trials from which the rate is computed."""

OpenService = Callable[[Combination, Path], AbstractContextManager[Service]]
Tell = Callable[[str], None]


class Watch(Protocol):
    """The interface to the machine that a campaign needs (see `machine.py`)."""

    max_other_cpu: float

    def others_share(self) -> float: ...
    def await_quiet(self, tell: Tell) -> None: ...


@dataclass(slots=True)
class _State:
    """The records of one combination, with references and repeated measurements apart.

    If a doubtful strategy was measured twice, the less doubtful trial is its record.
    """

    records: list[Record] = field(default_factory=list)
    references: list[Record] = field(default_factory=list)
    again: list[Record] = field(default_factory=list)
    is_exhausted: bool = False
    _positions: dict[tuple[str, str | None], int] = field(default_factory=dict)
    _mended: set[int] = field(default_factory=set)

    def add(self, record: Record) -> None:
        apart = {REFERENCE_ORIGIN: self.references, AGAIN_ORIGIN: self.again}.get(record.origin)
        if apart is not None:
            apart.append(record)
            return
        position = self._positions.setdefault((record.origin, record.strategy_id), len(self.records))
        if position == len(self.records):
            self.records.append(record)
        else:
            self.records[position] = most_reliable([self.records[position], record])
            self._mended.add(position)

    @property
    def num_counted(self) -> int:
        """The number of records that count for the plan. Those that kept the processors busy do not count."""
        return sum(not (one.measurement and "busy_cpu" in one.measurement.flags) for one in self.records)

    def to_mend(self) -> list[Record]:
        """Return the doubtful records whose strategies were measured only once."""
        flagged = flag_drift([*self.records, *self.references])[: len(self.records)]
        return [one for at, one in enumerate(flagged) if at not in self._mended and is_worth_repeating(one)]

    def to_repeat(self, num_again: int) -> list[Record]:
        """Return the records of the fastest random strategies to measure again, each as often as it still needs."""
        measured = sorted(
            (record.measurement.median_seconds, position)
            for position, record in enumerate(self.records)
            if record.measurement is not None and record.origin == "sampled"
        )
        fastest = [self.records[position] for _, position in measured[:num_again]]
        times = Counter(record.strategy_id for record in self.again)
        # In turn, so that consecutive trials are of different strategies.
        return [one for time in range(TIMES_AGAIN) for one in fastest if times[one.strategy_id] <= time]


class Collector:
    """Collects the records of a campaign into a store, to which no other process may write meanwhile."""

    def __init__(
        self,
        campaign: Campaign,
        combinations: Sequence[Combination],
        store: RecordStore,
        *,
        open_service: OpenService,
        machine: Watch,
        waits: bool = True,
        limit_seconds: float | None = None,
        tell: Tell = shared.tell,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.campaign = campaign
        self._combinations = combinations
        self._store = store
        self._open_service = open_service
        self.machine = machine
        self._waits = waits
        self._tell = tell
        self.clock = clock
        self._started = clock()
        self._limit_seconds = limit_seconds
        self._ends: list[float] = []
        self._longest_seconds = 0.0
        self._num_launch_failures = 0
        self.excused: set[tuple[str, str]] = set()
        self._states = {combination.key: _State() for combination in combinations}
        self._num_trials = 0
        self.counts: Counter[str] = Counter()
        self._read()

    def _read(self) -> None:
        """Read the store. Records of other plans only count for the numbers of trials."""
        for record in self._store.records(report=lambda problem: self._tell(f"left out: {problem}")):
            self._num_trials = max(self._num_trials, record.trial + 1)
            state = self._states.get(combination_of(record))
            if state is not None and record.study == self.campaign.name:
                state.add(record)

    @property
    def num_wanted(self) -> int:
        return sum(one.num_records + TIMES_AGAIN * one.num_again for one in self._combinations)

    @property
    def num_done(self) -> int:
        states = [(self._state(one), one) for one in self._combinations]
        num_new = sum(min(state.num_counted, one.num_records) for state, one in states)
        return num_new + sum(min(len(state.again), TIMES_AGAIN * one.num_again) for state, one in states)

    def done_of_each(self) -> dict[str, list[int]]:
        """Return for each combination how many records it has and how many it shall have."""
        return {one.name: [self._state(one).num_counted, one.num_records] for one in self._combinations}

    @property
    def is_late(self) -> bool:
        """Whether another trial might not end in time."""
        if self._limit_seconds is None:
            return False
        return self.clock() - self._started + self._longest_seconds > self._limit_seconds

    def collect(self) -> bool:
        """Measure until everything is done or the time is over; return whether everything is done."""
        for combination, num_wanted in self.visits():
            if self.is_late:
                return False
            proposals = Proposals(self.campaign, combination)
            self._visit(combination, proposals, self._new_ones(combination, proposals, num_wanted))
        for combination in self._combinations:
            for measure_again in (self._mend, self._repeat):
                if self.is_late:
                    return False
                measure_again(combination)
        return all(self._is_done(one) for one in self._combinations)

    def _mend(self, combination: Combination) -> None:
        """Measure doubtful records of a combination once more."""
        doubtful = self._state(combination).to_mend()
        if doubtful:
            self._tell(f"{combination.name}: {len(doubtful)} doubtful records are measured once more")
            proposals = Proposals(self.campaign, combination)
            self._visit(combination, proposals, map(proposals.mended, doubtful))

    def _repeat(self, combination: Combination) -> None:
        """Measure the fastest again, as often as the plan says."""
        again = self._state(combination).to_repeat(combination.num_again)
        if again:
            proposals = Proposals(self.campaign, combination)
            self._visit(combination, proposals, map(proposals.again, again))

    def visits(self) -> Iterator[tuple[Combination, int]]:
        """Yield the next combination, and the number of records that it shall have by then.

        Each round has its own random order.
        """
        most = max(combination.num_records for combination in self._combinations)
        for end in range(self.campaign.visit_trials, most + self.campaign.visit_trials, self.campaign.visit_trials):
            lots = random.Random(f"{self.campaign.seed}/{end}")
            for combination in lots.sample(list(self._combinations), len(self._combinations)):
                num_wanted = min(end, combination.num_records)
                state = self._state(combination)
                if state.num_counted < num_wanted and not state.is_exhausted:
                    yield combination, num_wanted

    def _state(self, combination: Combination) -> _State:
        return self._states[combination.key]

    def _is_done(self, combination: Combination) -> bool:
        state = self._state(combination)
        has_all = state.is_exhausted or state.num_counted >= combination.num_records
        return has_all and not state.to_mend() and not state.to_repeat(combination.num_again)

    def _new_ones(self, combination: Combination, proposals: Proposals, num_wanted: int) -> Iterator[Proposal]:
        """Yield new strategies until there are enough records that count."""
        state = self._state(combination)
        while state.num_counted < num_wanted:
            proposal = proposals.next(state.records)
            if proposal is None:
                state.is_exhausted = True
                self._tell(f"{combination.name}: nothing new is found after {len(state.records)} records")
                return
            yield proposal

    def _visit(self, combination: Combination, proposals: Proposals, wanted: Iterable[Proposal]) -> None:
        for spec in (model_spec(combination.model), cluster_spec(combination.cluster)):
            self._store.add_spec(spec)
        self._await_quiet()
        folder = self._store.logs / f"{combination.name.replace(':', '-')}"
        with self._open_service(combination, folder) as service:
            visit = _Visit(self, combination, service)
            if not visit.measure(proposals.reference):
                return
            for proposal in wanted:
                if self.is_late:
                    break
                if not visit.measure(proposal):
                    return
                if visit.num_since_reference >= self.campaign.reference_every:
                    visit.measure(proposals.reference)
            if visit.num_since_reference:
                visit.measure(proposals.reference)

    def _await_quiet(self) -> None:
        if self._waits:
            self.machine.await_quiet(self._tell)

    def before_trial(self) -> None:
        """Check the machine again if it was busy since the last trial."""
        if self.machine.others_share() > self.machine.max_other_cpu:
            self._await_quiet()

    def is_disturbed(self, record: Record) -> bool:
        """Return whether a trial must be repeated because other programs were busy."""
        return self._waits and record.measurement is not None and "busy_machine" in record.measurement.flags

    def next_number(self) -> int:
        self._num_trials += 1
        return self._num_trials - 1

    def keep(self, combination: Combination, record: Record, seconds: float) -> bool:
        """Store a record, and return whether the visit continues.

        A failure of the machines does not count as a trial.
        """
        if record.failure is not None and record.failure.is_infrastructure:
            self._num_launch_failures += 1
            self._tell(f"{combination.name}: {record.failure.message}")
            if self._num_launch_failures >= MAX_LAUNCH_FAILURES:
                raise OperationError(f"ranks cannot be started: {record.failure.message}")
            return False
        self._num_launch_failures = 0
        self._store.append(record)
        state = self._state(combination)
        state.add(record)
        self._longest_seconds = max(0.9 * self._longest_seconds, seconds)
        self._ends.append(self.clock())
        self.counts["failed" if record.measurement is None else "measured"] += 1
        self.counts.update(f"flag:{flag}" for flag in (record.measurement.flags if record.measurement else ()))
        self._tell(self._line(combination, record))
        failures = [one.failure is not None for one in state.records[-MAX_FAILURES_IN_A_ROW:]]
        if len(failures) == MAX_FAILURES_IN_A_ROW and all(failures):
            self._tell(f"{combination.name}: {MAX_FAILURES_IN_A_ROW} failures in a row; left for later")
            return False
        return True

    def _line(self, combination: Combination, record: Record) -> str:
        told = [f"{self.num_done}/{self.num_wanted}", combination.name, record.origin, outcome(record)]
        rate = self.records_per_hour
        if rate:
            told.append(f"| {rate:.0f} records/h, {(self.num_wanted - self.num_done) / rate:.1f} h left")
        if is_reference(record):
            told.append(f"({self._drift(combination):+.1%} from usual)")
        return " ".join(told)

    def _drift(self, combination: Combination) -> float:
        seconds = [one.measurement.median_seconds for one in self._state(combination).references if one.measurement]
        usual = sorted(seconds)[len(seconds) // 2]
        return seconds[-1] / usual - 1

    @property
    def records_per_hour(self) -> float | None:
        """The rate over the last trials; None before there are two."""
        ends = self._ends[-RATE_TRIALS:]
        return None if len(ends) < 2 or ends[-1] <= ends[0] else 3600 * (len(ends) - 1) / (ends[-1] - ends[0])


class _Visit:
    """One visit to a combination with a service."""

    def __init__(self, collector: Collector, combination: Combination, service: Service) -> None:
        self.num_since_reference = 0
        self._collector = collector
        self._combination = combination
        self._slow_seconds: float | None = None
        self._trials = TrialRunner(
            study=collector.campaign.name,
            service=service,
            preparer=TrialPreparer(combination.model, combination.cluster),
            is_replayed=True,
            effort=Effort(trial=collector.campaign.steps.policy()),
            dilation=combination.dilation,
            others_share=collector.machine.others_share,
            max_other_cpu=collector.machine.max_other_cpu,
        )

    def measure(self, proposal: Proposal) -> bool:
        """Run one trial and store it; return whether the visit continues."""
        collector = self._collector
        number = collector.next_number()
        for _ in range(MAX_DISTURBED):
            collector.before_trial()
            began = collector.clock()
            key = (self._combination.name, proposal.candidate.strategy_id)
            record = self._trials.run(
                proposal.candidate, number, best_seconds=self._slow_seconds, is_repeated=key in collector.excused
            )
            if record.failure is not None and record.failure.is_infrastructure:
                collector.excused.add(key)
            if not collector.is_disturbed(record):
                break
            collector.counts["disturbed"] += 1
        is_repeated = record.origin == REFERENCE_ORIGIN
        if is_repeated and record.measurement is not None:
            self._slow_seconds = record.measurement.median_seconds
        self.num_since_reference = 0 if is_repeated else self.num_since_reference + 1
        goes_on = collector.keep(self._combination, record, collector.clock() - began)
        return goes_on and not (is_repeated and record.measurement is None)


def outcome(record: Record) -> str:
    """Return the outcome of a trial in words."""
    if record.failure is not None:
        return f"{record.failure.kind}: {record.failure.message[:120]}"
    measured: Measurement | None = record.measurement
    assert measured is not None, "a record has a measurement or a failure"
    flags = f" [{', '.join(measured.flags)}]" if measured.flags else ""
    share = 0.0 if measured.cpu_share is None else measured.cpu_share
    half = (measured.high_seconds - measured.low_seconds) / 2 / measured.median_seconds
    return f"{measured.median_seconds * 1e3:.1f} ms ±{half:.1%}, {measured.num_steps} steps, CPU {share:.0%}{flags}"
