"""Studies as tuning leaves them: an ordinary one, and one whose names are attacks."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autosync.datasets.schema import Failure, Record
from autosync.datasets.studies import read_study
from autosync.doctor.causes import COMPUTE
from autosync.doctor.diagnosis import Diagnosis, RankedCause
from autosync.doctor.findings import CauseFinding
from autosync.doctor.gain import Gain
from autosync.doctor.wording import Operands
from autosync.report.comparison_page import ComparisonReport
from autosync.report.diagnosis_page import DiagnosisReport
from autosync.report.study_report import StudyReport, read_study_report
from autosync.search.study_folder import StudyFolder
from autosync.search.tune import tune
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.strategy.presets import build_preset
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.compare import compare
from autosync.trials.contestant import Contestant

ATTACK = '</script></title></style>--><script>window.hit=1</script><img src=x onerror="window.hit=1">\'&amp;{{1}}'


def _model(name: str, variables: Sequence[str]) -> ModelSpec:
    last = len(variables) - 1
    shapes = [Variable(name=one, shape=(64, 8 + i), use=i, ready=last - i) for i, one in enumerate(variables)]
    segment = Segment(module="all", seconds=0.02, variables=tuple(variables))
    timeline = Timeline(device="cpu", source="computed", forward=(segment,), backward=(segment,))
    return ModelSpec(
        name=name, batch_size=32, optimizer=OptimizerSpec(name="SGD"), variables=tuple(shapes), timeline=timeline
    )


def _study(folder: Path, model: ModelSpec) -> StudyFolder:
    """Tune without running anything: stock DDP takes 200 ms a step, everything else 100."""
    nodes = tuple(Node(name=f"n{i}", host=f"h{i}", bandwidth_out=1e8, bandwidth_in=1e8) for i in range(2))
    steps = {"stock DDP": FakeSteps(seconds=0.2, noise=0.02)}
    service = FakeService(steps, others=FakeSteps(seconds=0.1, noise=0.02))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("autosync.search.tuning_plan.TrialService", lambda **_: service)
        cluster = ClusterSpec(name="pair", nodes=nodes, launcher="ssh")
        tuned = tune(model=model, cluster=cluster, study="s", proposer="random", simulator="timeline", num_trials=5)
    return StudyFolder(folder / tuned.folder)


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    return _study(tmp_path_factory.mktemp("ordinary"), _model("tiny", ["fc.weight", "fc.bias", "out.weight"]))


@pytest.fixture
def report(study: StudyFolder) -> StudyReport:
    return read_study_report(study)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> StudyReport:
    """A study in whose files every text that a stranger can choose is an attack."""
    folder = tmp_path_factory.mktemp("hostile")
    attack = ATTACK.replace("[", "(").replace("]", ")")
    made = _study(folder, _model(attack, [f"a.{attack}", f"b.{attack}"]))
    summary = json.loads(made.summary.read_text(encoding="utf-8"))
    for field in ("study", "cluster", "proposer", "ended"):
        summary[field] = ATTACK
    summary["tried"] = {ATTACK: 5}
    summary["left_out"] = {ATTACK: ATTACK}
    summary["winner"] |= {"in_words": ATTACK, "schedule": ATTACK, "training": ATTACK, "use": [ATTACK]}
    summary["winner"]["name"] = summary["contests"][-1]["name"] = ATTACK
    for contest in summary["contests"]:
        contest["flags"], contest["time"]["busiest_link"] = [ATTACK], ATTACK
        contest["time"]["fullest"] = ATTACK
    made.summary.write_text(json.dumps(summary), encoding="utf-8")
    records = [
        replace(record, origin=ATTACK, environment={ATTACK: ATTACK, "torch": ATTACK}) for record in _records(made)
    ]
    failure = Failure(kind="raised", message=ATTACK)
    records.append(replace(records[-1], trial=99, measurement=None, failure=failure))
    found = read_study_report(made, records)
    assert found.settings is not None
    return dataclasses.replace(found, settings=replace(found.settings, task=ATTACK, cluster=ATTACK), left_out=(ATTACK,))


@pytest.fixture(scope="session")
def thousand(study: StudyFolder) -> StudyReport:
    """The ordinary study with 1,000 trials, a minute apart."""
    known = _records(study)
    begin = datetime(2026, 1, 31, tzinfo=UTC)
    records = [
        replace(known[number % len(known)], trial=number, started=(begin + timedelta(minutes=number)).isoformat())
        for number in range(1000)
    ]
    return read_study_report(study, records)


@pytest.fixture
def alone(study: StudyFolder, tmp_path: Path) -> StudyReport:
    """A folder with nothing but its verdict, as an older version wrote it."""
    folder = StudyFolder(tmp_path / "alone")
    folder.path.mkdir()
    shutil.copy(study.summary, folder.summary)
    summary = json.loads(folder.summary.read_text(encoding="utf-8"))
    for contest in summary["contests"]:
        for field in ("step_seconds", "time", "role", "strategy_id"):
            del contest[field]
    folder.summary.write_text(json.dumps(summary), encoding="utf-8")
    return read_study_report(folder)


@pytest.fixture(scope="session")
def compared() -> ComparisonReport:
    """A comparison of stock DDP with two strategies, one of which has an attack for its name, and one that failed."""
    model = _model("tiny", ["fc.weight", f"{ATTACK.replace('[', '(').replace(']', ')')}"])
    nodes = tuple(Node(name=f"n{i}", host=f"h{i}", bandwidth_out=1e8, bandwidth_in=1e8) for i in range(2))
    cluster = ClusterSpec(name="pair", nodes=nodes, launcher="ssh")
    strategies = {"torch-ddp": None, "sharded": build_preset("sharded", model, cluster), ATTACK: None, "broken": None}
    steps = {
        "torch-ddp": FakeSteps(seconds=0.2, noise=0.02),
        "sharded": FakeSteps(seconds=0.1, noise=0.02),
        ATTACK: FakeSteps(seconds=0.3, noise=0.02),
        "broken": FakeSteps(seconds=0.1, fails_at=1),
    }
    comparison = compare(FakeService(steps), [Contestant(name=name) for name in strategies])
    return ComparisonReport(
        comparison=comparison, model=model, cluster=cluster, strategies=strategies, command=f"autosync compare {ATTACK}"
    )


@pytest.fixture(scope="session")
def diagnosed() -> DiagnosisReport:
    """A diagnosis of a script with an attack for its name: one rank is slow."""
    slow = RankedCause(name="slow_rank", finding=CauseFinding(seconds=0.2, told=ATTACK, subject=ATTACK), share=0.5)
    rest = RankedCause(name=COMPUTE, finding=CauseFinding(seconds=0.15, told="forward"), share=0.4)
    diagnosis = Diagnosis(
        step_seconds=0.4,
        num_steps=12,
        primary=slow,
        others=(rest,),
        unknown={"slow_link": ATTACK},
        gain=Gain(step_seconds=0.4, bound_seconds=0.2, because=ATTACK),
    )
    nodes = tuple(Node(name=f"n{i}", host=f"h{i}", bandwidth_out=1e8, bandwidth_in=1e8) for i in range(2))
    cluster = ClusterSpec(name="pair", nodes=nodes, launcher="ssh")
    operands = Operands(cluster="c.yaml", script=("train.py", ATTACK))
    return DiagnosisReport(diagnosis=diagnosis, operands=operands, cluster=cluster)


def _records(study: StudyFolder) -> list[Record]:
    return list(read_study(study.path))
