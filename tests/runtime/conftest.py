"""Real ranks for tests: clusters on this machine, bundles made for them, and processes that end whatever happens."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import model_of
from autosync.specs.profile.run import profile
from autosync.specs.task_file import load_task
from autosync.strategy.bundle import save_bundle
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.stages import ModelStage
from autosync.strategy.synchronisers.sharded import Sharded
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors
from tests.helpers.forks import Forked

HERE = Path(__file__).parent
EXACTNESS = HERE.parents[1] / "benchmarks" / "exactness" / "exactness.py"
LIMIT_SECONDS = 150.0

CLUSTERS = {
    "one node": (2,),
    "two nodes": (2, 2),
    "four nodes": (1, 1, 1, 1),
    "unequal": (2, 1),
    "five ranks": (2, 2, 1),
    "six ranks": (3, 2, 1),
}


def cluster_of(name: str) -> ClusterSpec:
    """A cluster with so many ranks a node, all on this machine."""
    nodes = tuple(
        Node(name=f"n{i}", host="localhost", devices=count, bandwidth_out=1e8, bandwidth_in=1e8)
        for i, count in enumerate(CLUSTERS[name])
    )
    return ClusterSpec(name="test", nodes=nodes)


@functools.cache
def model(task: str) -> ModelSpec:
    return model_of(f"{HERE / 'tasks.py'}:{task}")


@functools.cache
def staged_model(task: str) -> ModelSpec:
    """The profile of a task of `stage_tasks.py`, with its cuts.

    It does not say whether microbatches mix examples: here the ranks find that out.
    """
    spec = profile(load_task(f"{HERE / 'stage_tasks.py'}:{task}"), steps=1, cuts=True)
    return replace(spec, timeline=replace(spec.timeline, mixes=""))


def write_bundle(path: Path, strategy: Strategy, task: str, cluster: ClusterSpec) -> str:
    spec = model(task)
    bundle = bundled(strategy, spec, cluster)
    save_bundle(path, bundle)
    return str(path)


class Ranks:
    """Runs cases on the ranks of a cluster: all in one launch, for processes take seconds to start."""

    def __init__(self, folder: Path, cluster: ClusterSpec) -> None:
        self.folder = folder
        self.cluster = cluster
        # A command before that of the ranks: one that gives them a network of their own, for example.
        self.within: tuple[str, ...] = ()
        self._process: subprocess.Popen[bytes] | Forked | None = None

    def bundle(self, preset: str, task: str, **options: Any) -> str:
        """The path of a preset's bundle."""
        strategy = build_preset(preset, model(task), self.cluster, **options)
        return write_bundle(self.folder / f"{preset}-{task}.yaml", strategy, task, self.cluster)

    def divided_bundle(self, preset: str, task: str, shares: tuple[int, ...]) -> str:
        """The path of a preset's bundle in which ranks compute these shares of the batch."""
        strategy = replace(build_preset(preset, model(task), self.cluster), shares=shares)
        return write_bundle(self.folder / f"{preset}-{task}-divided.yaml", strategy, task, self.cluster)

    def staged_bundle(
        self,
        task: str,
        places: Sequence[int],
        ranks: Sequence[Sequence[int]],
        microbatches: int,
        schedule: str = "1f1b",
        *,
        recompute: bool = False,
    ) -> str:
        """The path of a bundle that cuts a task of `stage_tasks.py` before these segments."""
        spec = staged_model(task)
        stages = tuple(
            ModelStage(before=before, ranks=tuple(of_stage)) for before, of_stage in zip(places, ranks, strict=True)
        )
        strategy = divided_strategy(spec, stages, microbatches, schedule, recompute=recompute)  # type: ignore[arg-type]
        cut = "-".join(f"{stage.before}on{''.join(map(str, stage.ranks))}" for stage in stages)
        name = f"{task}-{cut}-{microbatches}-{schedule}{'-again' if recompute else ''}"
        path = self.folder / f"{name}.yaml"
        save_bundle(path, bundled(strategy, spec, self.cluster))
        return str(path)

    def undivided_bundle(self, preset: str, task: str) -> str:
        """The path of a preset's bundle for a task of `stage_tasks.py`."""
        spec = staged_model(task)
        path = self.folder / f"{preset}-{task}-undivided.yaml"
        save_bundle(path, bundled(build_preset(preset, spec, self.cluster), spec, self.cluster))
        return str(path)

    def mixed_bundle(self) -> str:
        """The path of a bundle that has the first layer of `small` updated by all workers and the second in shards."""
        second = Message(parts=("2.weight", "2.bias"), synchroniser=Sharded())
        strategy = Strategy(messages=(Message(parts=("0.weight", "0.bias")), second))
        return write_bundle(self.folder / "mixed.yaml", strategy, "small", self.cluster)

    def factors_bundle(self) -> str:
        """The path of a bundle that sends factors of the first layer of `small`."""
        first = Message(parts=("0.weight",), synchroniser=SufficientFactors())
        strategy = Strategy(messages=(first, Message(parts=("0.bias", "2.weight", "2.bias"))))
        return write_bundle(self.folder / "factors.yaml", strategy, "small", self.cluster)

    def run(
        self, cases: Sequence[tuple[str, dict[str, Any]]], *, limit_seconds: float = LIMIT_SECONDS
    ) -> list[list[Any]]:
        """Each rank's answers, as many as it gave."""
        (self.folder / "cases.json").write_text(json.dumps(cases))
        num_ranks = self.cluster.num_workers
        start = subprocess.Popen if self.within else Forked
        with (self.folder / "log").open("wb") as log:
            self._process = start(
                (*self.within, sys.executable, HERE / "rank_main.py", self.folder, str(num_ranks)),
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_seconds)
        self.stop()
        return [self._answers(rank) for rank in range(num_ranks)]

    def run_one(self, case: str, **arguments: Any) -> list[Any]:
        """What each rank answers to one case; None where it gave no answer."""
        return [answers[0] if answers else None for answers in self.run([(case, arguments)])]

    def _answers(self, rank: int) -> list[Any]:
        path = self.folder / f"answers-{rank}.json"
        answers: list[Any] = json.loads(path.read_text()) if path.exists() else []
        return answers

    def stop(self) -> None:
        """End the ranks: they are a process group of their own."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def make_bundle() -> Callable[[Path, str, str, str], str]:
    """Writes a preset's bundle into a folder, for a task and a cluster by their names; its path."""

    def make(folder: Path, preset: str, task: str, cluster: str) -> str:
        return Ranks(folder, cluster_of(cluster)).bundle(preset, task)

    return make


@pytest.fixture
def make_ranks(tmp_path: Path) -> Iterator[Callable[[str], Ranks]]:
    """Makes the ranks of a cluster by its name; whatever still runs at the end of the test is ended."""
    made: list[Ranks] = []

    def make(name: str) -> Ranks:
        folder = tmp_path / f"ranks-{len(made)}"
        folder.mkdir()
        made.append(Ranks(folder, cluster_of(name)))
        return made[-1]

    yield make
    for ranks in made:
        ranks.stop()


@pytest.fixture
def serve() -> Iterator[Callable[[Path, list[str], str], Forked]]:
    """Starts a process that serves bundles in turn."""
    started: list[Forked] = []

    def start(folder: Path, bundles: list[str], node: str) -> Forked:
        (folder / "served.json").write_text(json.dumps(bundles))
        with (folder / "server.log").open("wb") as log:
            process = Forked(
                (sys.executable, HERE / "server_main.py", folder, node),
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def exactness() -> Callable[..., dict[str, Any]]:
    """Runs `benchmarks/exactness/exactness.py` with arguments; what it prints."""

    def run(*arguments: str, limit_seconds: float = 200) -> dict[str, Any]:
        process = Forked(
            (sys.executable, EXACTNESS, *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
        )
        try:
            out, errors = process.communicate(limit_seconds)
        finally:
            process.kill()
        assert out, errors
        printed: dict[str, Any] = json.loads(out)
        return printed

    return run


@pytest.fixture(scope="module")
def wire_answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each of `NUM_RANKS` ranks answered to each case of the module's `CASES`, as far as it came.

    All in one launch, for processes take seconds to start.
    """
    cases, num_ranks = request.module.CASES, request.module.NUM_RANKS
    folder = tmp_path_factory.mktemp("wire")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    command = (sys.executable, HERE / "wire_main.py", folder, str(num_ranks), *cases)
    with (folder / "log").open("wb") as log:
        process = Forked(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    told = [json.loads((folder / f"answers-{rank}.json").read_text()) for rank in range(num_ranks)]
    return {case: [rank[number] for rank in told if number < len(rank)] for number, case in enumerate(cases)}


@pytest.fixture(scope="session")
def staged_spec() -> Callable[[str], ModelSpec]:
    """Profiles a task of `stage_tasks.py`, with its cuts."""
    return staged_model
