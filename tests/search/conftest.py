"""Small models and clusters, records as trials leave them, recorded progress, and tuning that runs nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autosync.datasets.schema import Failure, Measurement, Record
from autosync.search.candidates import Candidate, candidate_of
from autosync.search.progress import SearchStatus
from autosync.search.tune import tune
from autosync.search.tuned import Tuned
from autosync.specs.background_load import BackgroundLoad
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import save_cluster
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.specs.model_file import save_model
from autosync.strategy.files import dump_strategy
from autosync.testing.trials import FakeService, FakeSteps

TuneFake = Callable[..., tuple[Tuned, FakeService]]


@pytest.fixture
def cluster() -> ClusterSpec:
    node = Node(name="this", host="localhost", devices=2, bandwidth_out=1e9, bandwidth_in=1e9)
    return ClusterSpec(name="pair", nodes=(node,))


def _model(shapes: dict[str, tuple[int, ...]], *, elementwise: bool = True) -> ModelSpec:
    last = len(shapes) - 1
    variables = tuple(
        Variable(name=name, shape=shape, use=i, ready=last - i) for i, (name, shape) in enumerate(shapes.items())
    )
    segment = Segment(module="all", seconds=0.01, variables=tuple(shapes))
    timeline = Timeline(device="cpu", source="computed", forward=(segment,), backward=(segment,))
    optimizer = OptimizerSpec(name="SGD", elementwise=elementwise)
    return ModelSpec(name="tiny", optimizer=optimizer, variables=variables, timeline=timeline)


@pytest.fixture
def model() -> ModelSpec:
    return _model({"fc.weight": (40, 30), "fc.bias": (40,), "out.weight": (10, 40)})


@pytest.fixture
def scalar() -> ModelSpec:
    """One variable without axes and an optimizer that updates it whole: hardly anything can be chosen."""
    return _model({"scale": ()}, elementwise=False)


@pytest.fixture
def make_record(model: ModelSpec, cluster: ClusterSpec):  # type: ignore[no-untyped-def]
    def make(number: int, candidate: Candidate, seconds: float | None) -> Record:
        measured = None
        if seconds is not None:
            measured = Measurement(
                step_seconds=((seconds,), (seconds,)),
                median_seconds=seconds,
                low_seconds=seconds,
                high_seconds=seconds,
                num_warmup_steps=1,
                peak_memory_bytes=(1, 1),
            )
        return Record(
            study="s",
            trial=number,
            origin=candidate.origin,
            model_name=model.name,
            model_fingerprint=model.fingerprint(),
            cluster_name=cluster.name,
            cluster_fingerprint=cluster.fingerprint(),
            strategy=None if candidate.strategy is None else dump_strategy(candidate.strategy),
            strategy_id=None if candidate.strategy is None else candidate.strategy_id,
            classes=("exact",),
            measurement=measured,
            failure=None if measured else Failure(kind="raised", message="no luck"),
            environment={},
            compute="real",
            network="real",
            started="2026-01-31T12:00:00+00:00",
        )

    return make


class Told:
    """Progress that is kept: lines that stay, and all that was said."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.lines.append(text)

    def now(self, text: str) -> None:
        self.lines.append(text)

    def tried(self, status: SearchStatus, number: int) -> None:
        self.note(status.outcome(number))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def tune_fake(model: ModelSpec, cluster: ClusterSpec, monkeypatch: pytest.MonkeyPatch) -> TuneFake:
    """Tunes a model spec on a service that runs nothing."""
    save_model(model, "model.yaml")
    save_cluster(Path("pair.yaml"), cluster)
    monkeypatch.setattr(BackgroundLoad, "share", lambda _: 0.0)

    def run(steps: dict[str, FakeSteps], **settings: Any) -> tuple[Tuned, FakeService]:
        service = FakeService(steps, others=FakeSteps(seconds=0.1, noise=0.005))
        monkeypatch.setattr("autosync.search.tuning_plan.TrialService", lambda **_: service)
        begun = {"model": "model.yaml", "cluster": "pair.yaml", "study": "s", "proposer": "random"}
        tuned = tune(**{**({} if "resume" in settings or "replay" in settings else begun), **settings})
        return tuned, service

    return run


@pytest.fixture
def names(tune_fake: TuneFake) -> list[str]:
    """What the first candidates are called: chance depends on the seed and on how many there were."""
    tuned, _ = tune_fake({}, study="names", num_trials=6, patience=0)
    return [candidate_of(record).name for record in tuned.records]
