"""The folders of AutoDist's release: what is written reads back exactly, and a folder from anywhere does no harm."""

import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.datasets.autodist_folder import CLUSTER_KEY, AutoDistFolder, is_autodist_folder, write_autodist_folder
from autosync.datasets.facts import cluster_spec, model_spec
from autosync.datasets.schema import Record
from autosync.errors import DocumentError, InputError, Problem
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model
from autosync.specs.resource_spec import build_cluster
from autosync.strategy.canonical import strategy_id
from autosync.strategy.files import dump_strategy
from autosync.strategy.presets import build_preset
from tests.helpers.mutations import mutations

MakeRecord = Callable[..., Record]

MODEL, CLUSTER = load_model("ncf"), load_cluster("4-hosts-2-racks")
SPECS = (model_spec(MODEL), cluster_spec(CLUSTER))
NASTY = '../../etc/passwd, "quoted"\n/and\\so'


@pytest.fixture
def sound(make_record: MakeRecord) -> Record:
    """A record whose specs are there."""
    ddp = build_preset("ddp", MODEL, CLUSTER)
    return make_record(
        model_name=MODEL.name,
        model_fingerprint=SPECS[0].fingerprint,
        model_spec=SPECS[0].spec_id,
        cluster_name=CLUSTER.name,
        cluster_fingerprint=SPECS[1].fingerprint,
        cluster_spec=SPECS[1].spec_id,
        strategy=dump_strategy(ddp),
        strategy_id=strategy_id(ddp, MODEL, CLUSTER),
    )


@pytest.fixture
def records(sound: Record, make_failed: MakeRecord) -> list[Record]:
    return [
        sound,
        replace(sound, trial=1, origin="baseline:torch_ddp", strategy=None, strategy_id=None, plan_id=None),
        make_failed("no\nanswer", trial=2),
        replace(sound, trial=3, study=NASTY),
        replace(make_failed(trial=4), model_name=NASTY, cluster_name=".." + "long" * 100),
    ]


def by_trial(records: Any) -> list[Record]:
    return sorted(records, key=lambda record: record.trial)


def test_what_is_written_reads_back_exactly(tmp_path: Path, records: list[Record]) -> None:
    folder = tmp_path / "inside" / "release"
    assert write_autodist_folder([*records, *records], SPECS, folder) == 5
    found = by_trial(AutoDistFolder(folder).records())
    assert found == records
    assert repr(found) == repr(records)
    assert {spec.spec_id: spec for spec in AutoDistFolder(folder).specs()} == {spec.spec_id: spec for spec in SPECS}
    assert is_autodist_folder(folder)
    # Whatever names say, nothing lies elsewhere.
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    assert [path.name for path in folder.parent.iterdir()] == ["release"]


def test_those_who_know_autodist_find_what_they_know(tmp_path: Path, sound: Record) -> None:
    write_autodist_folder([sound], SPECS, tmp_path / "release")
    cluster = tmp_path / "release" / MODEL.name / CLUSTER.name
    (runtime,) = (cluster / "runtime").iterdir()
    assert sorted(path.name for path in cluster.iterdir()) == ["resource_spec", "runtime", "strategies"]
    for folder in ("resource_spec", "strategies"):
        assert [path.name for path in (cluster / folder).iterdir()] == [runtime.name]
    plain = json.loads(runtime.read_text(encoding="utf-8"))
    assert plain["runtime"] == pytest.approx([0.105, 0.125, 0.25])
    assert plain["average"] == pytest.approx(0.16)
    described = json.loads((cluster / "resource_spec" / runtime.name).read_text(encoding="utf-8"))
    described.pop(CLUSTER_KEY)
    read = build_cluster(described, name="as AutoDist reads it")
    assert [node.host for node in read.nodes] == [node.host for node in CLUSTER.nodes]
    assert [node.bandwidth_out for node in read.nodes] == [node.bandwidth_out for node in CLUSTER.nodes]


def test_a_folder_is_never_replaced_and_an_error_leaves_none(tmp_path: Path, sound: Record) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="a folder is never replaced"):
        write_autodist_folder([sound], SPECS, tmp_path / "there")
    with pytest.raises(InputError, match="1 specs that records name are missing"):
        write_autodist_folder([sound], SPECS[:1], tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def read(folder: Path) -> tuple[list[Record], list[Problem]]:
    problems: list[Problem] = []
    return by_trial(AutoDistFolder(folder).records(report=problems.append)), problems


def test_what_is_damaged_is_told_and_the_rest_is_read(tmp_path: Path, records: list[Record]) -> None:
    folder = tmp_path / "release"
    write_autodist_folder(records, SPECS, folder)
    runtimes = sorted(folder.glob(f"{MODEL.name}/*/runtime/*"))
    runtimes[0].write_bytes(runtimes[0].read_bytes()[:-50])
    found, problems = read(folder)
    assert len(found) == 4
    assert [(problem.file, problem.line) for problem in problems] == [(str(runtimes[0]), 1)]
    with pytest.raises(DocumentError, match="is no JSON, or broken off"):
        list(AutoDistFolder(folder).records())


@pytest.mark.parametrize("missing", ["strategies", "resource_spec"])
def test_each_trial_has_its_files(missing: str, tmp_path: Path, sound: Record) -> None:
    write_autodist_folder([sound], SPECS, tmp_path / "release")
    (path,) = (tmp_path / "release").glob(f"*/*/{missing}/*")
    path.unlink()
    found, problems = read(tmp_path / "release")
    assert found == []
    assert problems[0].file == str(path)
    assert "each trial has its files" in str(problems[0])


def test_files_must_agree(tmp_path: Path, sound: Record) -> None:
    write_autodist_folder([sound, replace(sound, trial=1)], SPECS, tmp_path / "release")
    first, second = sorted((tmp_path / "release").glob("*/*/runtime/*"))
    first.write_text(first.read_text(encoding="utf-8").replace('"runtime":[0.10', '"runtime":[0.12'), encoding="utf-8")
    second.write_text(second.read_text(encoding="utf-8").replace('"trial":', '"trial":1'), encoding="utf-8")
    found, problems = read(tmp_path / "release")
    assert found == []
    assert ["average and runtime" in problem.what or "checksum" in problem.what for problem in problems] == [True] * 2


def test_autodists_own_runs_are_told_apart(tmp_path: Path) -> None:
    runtime = tmp_path / "vgg16" / "cluster-A" / "runtime" / "2020"
    runtime.parent.mkdir(parents=True)
    runtime.write_text('{"average": 0.5, "runtime": [0.4, 0.6]}', encoding="utf-8")
    (problem,) = read(tmp_path)[1]
    assert "AutoDist's own runs have no record" in str(problem)


def test_links_and_pipes_are_told_and_not_opened(tmp_path: Path, sound: Record) -> None:
    folder, secret = tmp_path / "release", tmp_path / "secret"
    secret.write_text("{}", encoding="utf-8")
    write_autodist_folder([sound], SPECS, folder)
    cluster = folder / MODEL.name / CLUSTER.name
    (cluster / "runtime" / "link").symlink_to(secret)
    os.mkfifo(cluster / "runtime" / "pipe")
    (cluster / "runtime" / "folder").mkdir()
    (folder / "elsewhere").symlink_to(folder / MODEL.name)
    (folder / MODEL.name / "around").symlink_to(folder)
    (folder / "notes").write_text("x", encoding="utf-8")
    found, problems = read(folder)
    assert found == [sound]
    told = {Path(problem.file).name: problem.what for problem in problems}
    assert set(told) == {"link", "pipe", "folder", "elsewhere", "around", "notes"}
    assert told["link"] == told["pipe"] == "is no plain file"


@pytest.mark.parametrize("name", ["strategies", "resource_spec"])
def test_folders_that_are_links_are_not_followed(name: str, tmp_path: Path, sound: Record) -> None:
    folder, elsewhere = tmp_path / "release", tmp_path / "elsewhere"
    write_autodist_folder([sound], SPECS, folder)
    cluster = folder / MODEL.name / CLUSTER.name
    (cluster / name).rename(elsewhere)
    (cluster / name).symlink_to(elsewhere)
    found, problems = read(folder)
    assert found == []
    assert {problem.what for problem in problems} == {"is no plain file"}


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_damaged_folders_lose_what_is_damaged_and_nothing_else(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any file of a trial is cut, flipped or mutated: it is told by name, or what is read is what was written."""
    rng = random.Random(seed)
    folder = tmp_path_factory.mktemp("fuzz") / "release"
    ddp = build_preset("ddp", MODEL, CLUSTER)
    record = _record(ddp)
    write_autodist_folder([record, replace(record, trial=1)], SPECS, folder)
    file = rng.choice(sorted(path for path in folder.glob("*/*/*/*") if path.is_file()))
    raw = bytearray(file.read_bytes())
    match rng.randrange(3):
        case 0:
            raw = raw[: rng.randrange(len(raw))]
        case 1:
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        case _:
            raw = bytearray(mutations(raw.decode(), rng).encode(errors="surrogateescape"))
    file.write_bytes(raw)
    found, problems = read(folder)
    assert all(one in (record, replace(record, trial=1)) for one in found)
    assert len(found) + len({problem.file for problem in problems}) >= 2
    assert all(Path(problem.file).name == file.name for problem in problems)


def _record(strategy: Any) -> Record:
    from autosync.datasets.schema import Measurement

    return Record(
        study="s",
        trial=0,
        origin="sampled",
        model_name=MODEL.name,
        model_fingerprint=SPECS[0].fingerprint,
        cluster_name=CLUSTER.name,
        cluster_fingerprint=SPECS[1].fingerprint,
        strategy=dump_strategy(strategy),
        strategy_id=strategy_id(strategy, MODEL, CLUSTER),
        classes=("exact",),
        measurement=Measurement(
            step_seconds=((0.5, 0.25),),
            median_seconds=0.375,
            low_seconds=0.25,
            high_seconds=0.5,
            num_warmup_steps=4,
            peak_memory_bytes=(1,),
        ),
        model_spec=SPECS[0].spec_id,
        cluster_spec=SPECS[1].spec_id,
        environment={"torch": "2.13.0"},
        compute="replayed",
        network="emulated",
        started="2026-01-31T12:00:00+00:00",
    )
