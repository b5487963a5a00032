"""Campaigns on a service that runs nothing: whatever ends one, the next goes on as if it had not ended."""

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from autosync.datasets.machine_drift import AGAIN_ORIGIN, REFERENCE_ORIGIN, flag_drift
from autosync.datasets.parquet_folder import read_packed
from autosync.datasets.reliability import is_worth_repeating
from autosync.datasets.schema import Record
from autosync.datasets.store import RecordStore
from autosync.errors import OperationError
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model
from benchmarks.dataset.campaign_plan import Screen
from benchmarks.dataset.collect_dataset import packed
from benchmarks.dataset.proposals import Proposals
from tests.datasets.campaign_fakes import (
    COMBINATIONS,
    STEPS,
    Idle,
    Services,
    campaign,
    collector,
    combination,
    strategies,
)


def is_new(record: Record) -> bool:
    return record.origin not in (REFERENCE_ORIGIN, AGAIN_ORIGIN)


def origins(path: Path) -> list[str]:
    return [record.origin.partition(":")[0] for record in RecordStore(path).records()]


def test_everything_is_measured_once_round_by_round(tmp_path: Path) -> None:
    services = Services()
    assert collector(tmp_path, services).collect()
    found = strategies(tmp_path)
    assert {name: len(ids) for name, ids in found.items()} == {"2-hosts": 20, "4-hosts": 14}
    assert all(len(set(ids)) == len(ids) for ids in found.values())
    # Four visits of one, three of the other.
    assert services.num_opened == 7
    assert {"baseline", "preset", "sampled", "mutated", "crossed", "neighbour"} <= set(origins(tmp_path))
    first_round = list(RecordStore(tmp_path).records())[: 2 * 8]
    assert {record.cluster_name for record in first_round} == {"2-hosts", "4-hosts"}


def test_a_mix_of_divided_strategies_has_stages(tmp_path: Path) -> None:
    combinations = (replace(combination("acoustic_mlp", "4-hosts", num_records=26), mix={"divided": 1}),)
    assert collector(tmp_path, Services(), combinations=combinations).collect()
    divided = [record for record in RecordStore(tmp_path).records() if record.origin == "divided"]
    assert len(divided) >= 4
    assert all(record.strategy is not None and record.strategy["stages"] for record in divided)


def test_each_visit_begins_and_ends_with_the_reference_and_has_it_in_between(tmp_path: Path) -> None:
    collector(tmp_path, Services(), campaign=campaign(visit_trials=20, reference_every=5)).collect()
    of_one = [record for record in RecordStore(tmp_path).records() if record.cluster_name == "2-hosts"]
    positions = [number for number, record in enumerate(of_one) if record.origin == REFERENCE_ORIGIN]
    assert positions[0] == 0
    assert positions[-1] == len(of_one) - 1
    assert max(b - a for a, b in pairwise(positions)) == 6
    assert len({of_one[number].strategy_id for number in positions}) == 1
    assert flag_drift(of_one) == of_one


@pytest.mark.parametrize("stops_at", [None, 27, pytest.param(29, marks=pytest.mark.slow)])
def test_the_fastest_random_strategies_are_measured_again_in_the_end(stops_at: int | None, tmp_path: Path) -> None:
    combinations = (combination(num_again=3),)
    if stops_at is not None:
        with pytest.raises(KeyboardInterrupt):
            collector(tmp_path, Services(stops_at=stops_at), combinations=combinations).collect()
    last = collector(tmp_path, Services(), combinations=combinations)
    assert last.collect()
    assert last.num_done == last.num_wanted == 20 + 2 * 3
    records = [record for record in RecordStore(tmp_path).records() if record.measurement]
    sampled = [record for record in records if record.origin == "sampled"]
    fastest = sorted(sampled, key=lambda record: record.measurement.median_seconds)[:3]
    again = [record.strategy_id for record in records if record.origin == AGAIN_ORIGIN]
    assert again == 2 * [record.strategy_id for record in fastest]


def test_who_keeps_the_processors_busy_does_not_count_and_is_not_measured_again(tmp_path: Path) -> None:
    one = (combination(num_records=8),)
    collected = collector(tmp_path, Services(busy={3, 5}), combinations=one)
    assert collected.collect()
    assert collected.num_done == collected.num_wanted == 8
    flags = [one.measurement.flags for one in RecordStore(tmp_path).records() if one.measurement and is_new(one)]
    assert (len(flags), flags.count(("busy_cpu",)), flags.count(())) == (10, 2, 8)


def test_doubtful_records_are_measured_once_more_and_the_better_trials_ship(tmp_path: Path) -> None:
    """The third and the fourth trial are noisy; the fourth is so again. None of them is a reference."""
    one = (combination(num_records=8),)
    # Eight records and four references come before what is measured once more, behind another reference.
    services = Services(noisy={3, 4, 15})
    assert collector(tmp_path / "store", services, combinations=one).collect()
    records = list(RecordStore(tmp_path / "store").records())
    third, fourth = records[2], records[3]
    again = [record for record in records[12:] if record.origin != REFERENCE_ORIGIN]
    assert [record.strategy_id for record in again] == [third.strategy_id, fourth.strategy_id]
    assert [record.origin for record in again] == [third.origin, fourth.origin]
    assert [is_worth_repeating(record) for record in again] == [False, True]
    # Once more is enough, and what ships has each strategy once.
    services = Services()
    assert collector(tmp_path / "store", services, combinations=one).collect()
    assert services.num_opened == 0
    told = packed(campaign(), one, RecordStore(tmp_path / "store"), tmp_path / "packed", force=False)
    assert (told["num_replaced"], told["num_records"]) == (2, len(records) - 2)
    shipped = [record.trial for record in read_packed(tmp_path / "packed")]
    assert third.trial not in shipped
    assert len({fourth.trial, again[1].trial} & set(shipped)) == 1


def test_what_the_plan_has_no_more_stays_in_the_store(tmp_path: Path) -> None:
    collector(tmp_path / "store", Services()).collect()
    told = packed(campaign(), COMBINATIONS[:1], RecordStore(tmp_path / "store"), tmp_path / "packed", force=False)
    assert told["num_not_of_plan"] == len(list(RecordStore(tmp_path / "store").records())) - told["num_records"] > 0
    assert {record.cluster_name for record in read_packed(tmp_path / "packed")} == {"2-hosts"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a campaign that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    collector(folder, Services()).collect()
    return folder


@pytest.mark.parametrize(
    "stops_at", [1, 23, *(pytest.param(number, marks=pytest.mark.slow) for number in (2, 5, 9, 17, 30))]
)
def test_an_interrupted_campaign_goes_on_where_it_was(stops_at: int, whole: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        collector(tmp_path / "cut", Services(stops_at=stops_at)).collect()
    assert collector(tmp_path / "cut", Services()).collect()
    # What is proposed follows from what was measured, which here is the same on any day.
    assert strategies(tmp_path / "cut") == strategies(whole)
    numbers = [record.trial for record in RecordStore(tmp_path / "cut").records()]
    assert len(set(numbers)) == len(numbers)


def test_a_line_that_a_crash_left_torn_is_measured_again(tmp_path: Path) -> None:
    collector(tmp_path, Services()).collect()
    before = strategies(tmp_path)
    file = RecordStore(tmp_path).records_file
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-2]) + lines[-2][:100])
    told: list[str] = []
    assert collector(tmp_path, Services(), tell=told.append).collect()
    assert told[0].startswith("left out: ")
    assert strategies(tmp_path) == before


def test_what_is_done_is_not_measured_again(tmp_path: Path) -> None:
    collector(tmp_path, Services()).collect()
    services = Services()
    again = collector(tmp_path, services)
    assert again.collect()
    assert services.num_opened == 0
    assert again.num_done == again.num_wanted == 34


def test_it_stops_in_time_and_keeps_what_it_has(tmp_path: Path) -> None:
    services = Services()
    assert not collector(tmp_path, services, limit_seconds=20.0).collect()
    # The last reference of a visit may come after it.
    assert services.now < 23.0
    assert 5 < len(origins(tmp_path)) < 30


def test_records_of_other_campaigns_do_not_count(tmp_path: Path, make_record: Callable[..., Record]) -> None:
    RecordStore(tmp_path).append(make_record(trial=100))
    collector(tmp_path, Services()).collect()
    records = list(RecordStore(tmp_path).records())
    assert sorted(record.trial for record in records) == list(range(100, 100 + len(records)))


def test_a_busy_machine_is_waited_for_and_then_given_up(tmp_path: Path) -> None:
    machine = Idle()
    machine.share = 0.5
    with pytest.raises(OperationError, match="other programs"):
        collector(tmp_path, Services(), machine).collect()
    assert machine.num_waits == 4
    assert list(RecordStore(tmp_path).records()) == []


class Disturbed(Idle):
    """Others are busy during the first trials, and never before one."""

    def __init__(self, num_disturbed: int) -> None:
        super().__init__()
        # Asked before a trial, when it begins and when it ends.
        self._shares = [0.0, 0.0, 0.5] * num_disturbed

    def others_share(self) -> float:
        return self._shares.pop(0) if self._shares else 0.0


@pytest.mark.parametrize("num_disturbed", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_a_trial_that_others_disturb_is_made_again(tmp_path: Path, num_disturbed: int) -> None:
    campaign_collector = collector(tmp_path, Services(), Disturbed(num_disturbed))
    campaign_collector.collect()
    records = list(RecordStore(tmp_path).records())
    flagged = [record.measurement is not None and "busy_machine" in record.measurement.flags for record in records]
    assert flagged == [num_disturbed == 3] + [False] * (len(records) - 1)
    assert campaign_collector.counts["disturbed"] == num_disturbed
    assert [record.trial for record in records] == list(range(len(records)))


def test_a_busy_machine_may_be_measured_anyway(tmp_path: Path) -> None:
    machine = Idle()
    machine.share = 0.5
    assert collector(tmp_path, Services(), machine, waits=False).collect()
    assert machine.num_waits == 0


def test_records_say_what_they_are_of(tmp_path: Path) -> None:
    collector(tmp_path, Services()).collect()
    store = RecordStore(tmp_path)
    specs = {spec.spec_id: spec for spec in store.specs()}
    for record in store.records():
        assert record.study == "tried"
        assert (record.compute, record.network, record.dilation) == ("replayed", "emulated", 1.0)
        assert specs[record.model_spec or ""].fingerprint == record.model_fingerprint
        assert specs[record.cluster_spec or ""].name == record.cluster_name
        assert (record.plan is None) == (record.strategy is None)
        assert record.measurement is not None
        assert record.measurement.other_cpu_share == 0.0


def test_a_failed_trial_is_a_record_and_its_strategy_is_not_tried_again(tmp_path: Path) -> None:
    collector(tmp_path, Services(steps=replace(STEPS, fails_at=20))).collect()
    records = list(RecordStore(tmp_path).records())
    assert all(record.failure is None for record in records)
    assert not collector(tmp_path / "bad", Services(steps=replace(STEPS, fails_at=5))).collect()
    assert {record.origin for record in RecordStore(tmp_path / "bad").records()} == {REFERENCE_ORIGIN}


def test_ranks_that_do_not_start_are_no_trials_and_end_it(tmp_path: Path) -> None:
    with pytest.raises(OperationError, match="ranks cannot be started: no testbed"):
        collector(tmp_path, Services(fails=True)).collect()
    assert origins(tmp_path) == []


def test_hopeless_and_busy_strategies_are_not_proposed(make_failed: Callable[..., Record]) -> None:
    one = combination("resnet18", "4-hosts")
    reference = Proposals(campaign(), one).reference.facts
    assert reference is not None
    plan = campaign(screen=Screen(slowest=1.5, busy=0.25))
    proposals, records = Proposals(plan, one), []
    limit = 1.5 * (one.model.step_seconds + reference.wire_seconds)
    for _ in range(12):
        proposal = proposals.next(records)
        assert proposal is not None
        candidate = proposal.candidate
        if candidate.strategy is None:
            records.append(make_failed(strategy=None, strategy_id=None, plan_id=None))
        else:
            records.append(make_failed(strategy_id=candidate.strategy_id))
        if proposal.facts is not None:
            step_seconds = max(proposal.facts.wire_seconds, one.model.step_seconds)
            assert proposal.facts.wire_seconds <= limit
            own, native = proposal.facts.num_sends - proposal.facts.num_native_sends, proposal.facts.num_native_sends
            processor_seconds = 190e-6 * own + 70e-6 * native + 1.5e-9 * proposal.facts.sent_bytes
            assert processor_seconds <= 1.001 * 0.25 * (os.cpu_count() or 1) * step_seconds


def test_names_are_of_shipped_specs() -> None:
    assert combination().name == f"{load_model('ncf').name}:{load_cluster('2-hosts').name}"
