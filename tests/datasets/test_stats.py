"""Numbers of a dataset, and what is wrong with one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autosync.datasets.checks import Checker
from autosync.datasets.dataset import Dataset
from autosync.datasets.export import export
from autosync.datasets.facts import Spec, cluster_of_spec, cluster_spec, model_of_spec, model_spec
from autosync.datasets.parquet_folder import pack
from autosync.datasets.reliability import variation
from autosync.datasets.schema import Measurement, Record
from autosync.datasets.stats import dataset_stats, synchronisers
from autosync.datasets.store import RecordStore
from autosync.errors import InputError, Problem
from autosync.specs.cluster_file import load_cluster, save_cluster
from autosync.specs.model_file import load_model, save_model
from autosync.strategy.canonical import strategy_id
from autosync.strategy.files import dump_strategy
from autosync.strategy.presets import build_preset

MakeRecord = Callable[..., Record]

MODEL, CLUSTER = load_model("ncf"), load_cluster("2-hosts")
SPECS = (model_spec(MODEL), cluster_spec(CLUSTER))
DDP = build_preset("ddp", MODEL, CLUSTER)


@pytest.fixture
def sound(make_record: MakeRecord) -> Record:
    """A record in which everything fits."""
    return make_record(
        model_name=MODEL.name,
        model_fingerprint=SPECS[0].fingerprint,
        model_spec=SPECS[0].spec_id,
        cluster_name=CLUSTER.name,
        cluster_fingerprint=SPECS[1].fingerprint,
        cluster_spec=SPECS[1].spec_id,
        strategy=dump_strategy(DDP),
        strategy_id=strategy_id(DDP, MODEL, CLUSTER),
    )


def timed(record: Record, *steps: float, flags: tuple[Any, ...] = (), **changes: Any) -> Record:
    middle = sorted(steps)[len(steps) // 2]
    measured = Measurement(
        step_seconds=(tuple(step / 2 for step in steps), tuple(step * 3 / 2 for step in steps)),
        median_seconds=middle,
        low_seconds=middle,
        high_seconds=middle,
        num_warmup_steps=4,
        peak_memory_bytes=(1, 1),
        flags=flags,
    )
    return replace(record, measurement=measured, **changes)


def test_the_numbers_of_a_dataset(sound: Record, make_failed: MakeRecord) -> None:
    records = [
        timed(sound, 0.2, 0.2, 0.2, origin="baseline:torch_ddp", strategy=None, strategy_id=None, plan_id=None),
        timed(sound, 0.1, 0.1, 0.1, origin="sampled"),
        timed(sound, 0.01, 0.01, 0.01, origin="sampled", flags=("noisy", "busy_machine")),
        timed(sound, 0.3, 0.4, 0.5, origin="reference"),
        make_failed(),
    ]
    found = dataset_stats(records)
    assert (found.num_records, found.num_measured, found.num_failed) == (5, 4, 1)
    assert (found.num_references, found.num_flagged) == (1, 1)
    assert found.flags == {"noisy": 1, "busy_machine": 1}
    assert found.failures == {"timeout": 1}
    assert found.origins == {"sampled": 2, "baseline:torch_ddp": 1, "reference": 1, "preset:ddp": 1}
    assert found.models == {"ncf": 4, "resnet50": 1}
    assert found.synchronisers["sparse_gather"] == 3
    assert found.quiet_share == 0.75
    assert found.noise_median == pytest.approx(0)
    assert found.noise_percentile_95 == pytest.approx(0.25)
    measured = found.combinations[0]
    assert (measured.model, measured.cluster, measured.num_records, measured.num_sampled) == ("ncf", "2-hosts", 4, 2)
    # What is flagged is no gain.
    assert (measured.fastest_seconds, measured.median_seconds, measured.slowest_seconds) == (0.1, 0.2, 0.4)
    assert measured.speedup == pytest.approx(2)
    assert found.combinations[1].speedup is None


def test_models_of_one_fingerprint_and_other_times_stay_apart(sound: Record, tmp_path: Path) -> None:
    other = model_spec(replace(MODEL, timeline=MODEL.timeline.dilated(3.0)))
    assert (other.fingerprint, other.name) == (SPECS[0].fingerprint, SPECS[0].name)
    elsewhere = replace(sound, study="elsewhere", model_spec=other.spec_id)
    pack([sound, elsewhere], [*SPECS, other], tmp_path)
    source = Dataset(tmp_path)
    problems: list[Problem] = []
    records = list(source.records(problems.append))
    checker = Checker(source.specs())
    assert [problem for record in records for problem in checker.problems(record)] + problems == []
    assert {spec.spec_id for spec in source.specs()} == {other.spec_id, *(spec.spec_id for spec in SPECS)}
    names = sorted(f"ncf ({spec.spec_id[:8]})" for spec in (SPECS[0], other))
    assert [one.model for one in dataset_stats(records).combinations] == names
    assert [one.cluster for one in dataset_stats(records).combinations] == ["2-hosts", "2-hosts"]


def test_nothing_has_no_noise() -> None:
    found = dataset_stats([])
    assert (found.num_records, found.noise_median, found.combinations) == (0, None, ())


def test_the_noise_is_that_of_the_steps(sound: Record) -> None:
    measured = timed(sound, 0.1, 0.3).measurement
    assert measured is not None
    assert variation(measured) == pytest.approx(0.1414 / 0.2, rel=1e-3)
    one = timed(sound, 0.1).measurement
    assert one is not None
    assert variation(one) == 0


def test_synchronisers_are_found_and_all_reduce_where_none_is_said(sound: Record, make_record: MakeRecord) -> None:
    assert synchronisers(sound) == {"sparse_gather", "all_reduce"}
    assert synchronisers(make_record()) == {"all_reduce"}


def test_a_sound_record_is_found_so(sound: Record) -> None:
    assert Checker(SPECS).problems(timed(sound, 0.1, 0.2)) == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model_spec": "0000"}, "its model ncf is not there"),
        ({"cluster_spec": None}, "its cluster 2-hosts is not there"),
        ({"cluster_spec": SPECS[0].spec_id}, "its cluster 2-hosts is not there"),
        ({"model_name": "dlrm"}, "its model is dlrm, the spec that it names ncf"),
        ({"cluster_fingerprint": "x"}, "its cluster is 2-hosts, the spec"),
        ({"strategy": {"schema": "autosync.strategy/9"}}, "its strategy is none: version 9"),
        ({"strategy": {"schema": "autosync.strategy/1", "messages": []}}, "its strategy is"),
        ({"strategy_id": "x"}, "its strategy is not x"),
    ],
)
def test_what_does_not_fit_is_told(changes: dict[str, Any], what: str, sound: Record) -> None:
    found = Checker(SPECS).problems(replace(timed(sound, 0.1, 0.2), **changes))
    assert [what in problem.what for problem in found] == [True]


def test_measurements_that_cannot_be_of_the_cluster_are_told(sound: Record) -> None:
    record = timed(sound, 0.1, 0.2)
    assert record.measurement is not None
    alone = replace(record.measurement, step_seconds=((0.1, 0.2),), peak_memory_bytes=(1,))
    other = replace(record.measurement, median_seconds=0.3, high_seconds=0.3)
    for measurement in (alone, other):
        assert len(Checker(SPECS).problems(replace(record, measurement=measurement))) == 1


def test_a_number_that_is_there_twice_is_told(sound: Record) -> None:
    checker = Checker(SPECS)
    assert checker.problems(sound) == []
    assert [problem.what for problem in checker.problems(sound)] == ["another record has the same number"]


def test_every_form_of_a_dataset_is_read(tmp_path: Path, sound: Record) -> None:
    store = RecordStore(tmp_path / "store")
    store.append(sound)
    for spec in SPECS:
        store.add_spec(spec)
    pack([sound], SPECS, tmp_path / "packed")
    paths = [store.path, tmp_path / "packed", tmp_path / "a.csv", tmp_path / "a.jsonl", tmp_path / "a.parquet"]
    for path in paths[2:]:
        export([sound], path)
    problems: list[Problem] = []
    assert [list(Dataset(path).records(problems.append)) for path in paths] == [[sound]] * 5
    assert [len(Dataset(path).specs()) for path in paths] == [2, 2, 0, 0, 0]
    assert problems == []
    for path in (tmp_path, tmp_path / "none.csv", Path(__file__)):
        with pytest.raises(InputError, match=r"holds no records|is not there"):
            Dataset(path)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
def test_specs_hold_what_they_were_made_of(spec: Spec) -> None:
    made = model_of_spec(spec) if spec.kind == "model" else cluster_of_spec(spec)
    assert made in (MODEL, CLUSTER)


def test_a_study_is_a_dataset(tmp_path: Path, sound: Record, make_study: Callable[..., Path]) -> None:
    folder = make_study(tmp_path / "study", [sound])
    assert Dataset(folder).specs() == []
    save_model(MODEL, folder / "model.yaml")
    save_cluster(folder / "cluster.yaml", CLUSTER)
    source = Dataset(folder)
    # What a study's files hold is what its records name.
    assert {spec.spec_id for spec in source.specs()} == {sound.model_spec, sound.cluster_spec}
    assert pack(source.records(lambda _: None), source.specs(), tmp_path / "packed") == 1
