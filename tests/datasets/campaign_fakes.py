"""A campaign on a service that runs nothing, for the tests of campaigns."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from autosync.datasets.machine_drift import REFERENCE_ORIGIN
from autosync.datasets.store import RecordStore
from autosync.errors import OperationError
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.contestant import Contestant
from autosync.trials.service import StepSamples, TrialFailed
from benchmarks.dataset.campaign import Collector
from benchmarks.dataset.campaign_plan import Campaign, Combination, Group, Screen, _cluster, _model

STEPS = FakeSteps(seconds=0.05, noise=0.001)


class Idle:
    """A machine on which nothing else goes on, unless it is told so."""

    max_other_cpu = 0.1

    def __init__(self) -> None:
        self.share = 0.0
        self.num_waits = 0

    def others_share(self) -> float:
        return self.share

    def await_quiet(self, tell: Callable[[str], None]) -> None:
        self.num_waits += 1
        if self.num_waits > 3 and self.share > self.max_other_cpu:
            raise OperationError("other programs use the processors")


class Services:
    """Opens services whose steps take a time that follows from the strategy, and counts them."""

    def __init__(
        self,
        *,
        stops_at: int | None = None,
        steps: FakeSteps = STEPS,
        fails: bool = False,
        noisy: Collection[int] = (),
        busy: Collection[int] = (),
    ) -> None:
        self.num_opened = 0
        self.num_prepared = 0
        self.now = 0.0
        self._stops_at = stops_at
        self._steps = steps
        self._fails = fails
        self._noisy = noisy
        self._busy = busy

    @contextmanager
    def open(self, combination: Combination, folder: Path) -> Iterator["_Service"]:
        self.num_opened += 1
        yield _Service(self)

    def begin(self, contestant: Contestant) -> FakeSteps:
        self.num_prepared += 1
        if self.num_prepared == self._stops_at:
            raise KeyboardInterrupt
        if self._fails:
            raise TrialFailed("launch", "no testbed can be made here")
        factor = 1 + sum(map(ord, contestant.name.split()[-1])) % 100 / 100
        noise = 0.2 if self.num_prepared in self._noisy else self._steps.noise
        cpu_share = 0.9 if self.num_prepared in self._busy else self._steps.cpu_share
        return replace(self._steps, seconds=self._steps.seconds * factor, noise=noise, cpu_share=cpu_share)


class _Service:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._fake = FakeService({})

    def prepare(self, contestant: Contestant) -> None:
        self._fake = FakeService({contestant.name: self._services.begin(contestant)})
        self._fake.prepare(contestant)

    def run(self, name: str, num_steps: int, *, settle: bool = False) -> StepSamples:
        samples = self._fake.run(name, num_steps, settle=settle)
        self._services.now += max(sum(of_rank) for of_rank in samples.step_seconds)
        return samples

    def release(self, name: str) -> None:
        self._fake.release(name)


def combination(model: str = "ncf", cluster: str = "2-hosts", num_records: int = 20, num_again: int = 0) -> Combination:
    (found_model, model_key), (found_cluster, cluster_key) = _model(model), _cluster(cluster)
    return Combination(
        target=model,
        key=(model_key, cluster_key),
        model=found_model,
        cluster=found_cluster,
        dilation=1.0,
        num_records=num_records,
        mix={"sampled": 2, "mutated": 1, "crossed": 1, "neighbour": 1},
        num_again=num_again,
    )


COMBINATIONS = (combination(), combination(cluster="4-hosts", num_records=14))


def campaign(**changes: Any) -> Campaign:
    group = Group(models=("ncf",), clusters=("2-hosts",), records=1)
    fields = {"name": "tried", "groups": (group,), "visit_trials": 6, "screen": Screen(busy=1e6)}
    return Campaign(**(fields | changes))


def collector(path: Path, services: Services, machine: Idle | None = None, **options: Any) -> Collector:
    settings: dict[str, Any] = {"tell": lambda _: None, "clock": lambda: services.now}
    plan = options.pop("campaign", campaign())
    combinations = options.pop("combinations", COMBINATIONS)
    return Collector(
        plan,
        combinations,
        RecordStore(path),
        open_service=services.open,
        machine=machine or Idle(),
        **(settings | options),
    )


def strategies(path: Path) -> dict[str, list[str | None]]:
    """What was measured of each cluster, in its order, references not among it."""
    found: dict[str, list[str | None]] = {}
    for record in RecordStore(path).records():
        if record.origin != REFERENCE_ORIGIN:
            found.setdefault(record.cluster_name, []).append(record.strategy_id)
    return found
