"""Two ranks train a replayed spec with sparse gradients: under stock DDP as under a strategy that says the same."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model, save_model
from autosync.specs.task_run import draw_batch
from autosync.strategy.bundle import Bundle, save_bundle
from autosync.strategy.presets import build_preset
from autosync.strategy.synchronisers.sparse_gather import SparseGather
from autosync.trials.replay import replay_task
from tests.helpers.forks import Forked

PROGRAM = Path(__file__).with_name("replay_ranks.py")
LIMIT_SECONDS = 100.0
NUM_RANKS = 2
NUM_STEPS = 2
MODEL = "ncf_small"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the ranks have left their gradients."""
    folder = tmp_path_factory.mktemp("replay")
    model = load_model(MODEL)
    save_model(model, folder / "model.yaml")
    save_bundle(folder / "ddp.bundle.yaml", _bundle(model))
    with (folder / "log").open("wb") as log:
        process = Forked(
            (sys.executable, PROGRAM, folder, str(NUM_RANKS)),
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(LIMIT_SECONDS)
        yield folder
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _bundle(model: ModelSpec) -> Bundle:
    """DDP as a strategy: tables by gathers of their rows."""
    node = Node(name="this", host="localhost", devices=NUM_RANKS, bandwidth_out=1e9, bandwidth_in=1e9)
    cluster = ClusterSpec(name="pair", nodes=(node,))
    strategy = build_preset("ddp", model, cluster)
    assert {m.parts[0] for m in strategy.messages if isinstance(m.synchroniser, SparseGather)} == _tables(model)
    return bundled(strategy, model, cluster)


def _tables(model: ModelSpec) -> set[str]:
    return {variable.name for variable in model.variables if variable.sparse}


def _drawn(model: ModelSpec) -> list[list[dict[str, torch.Tensor]]]:
    """For each step, the rows that each rank's batch touches."""
    task = replay_task(model)
    generators = [torch.Generator().manual_seed(1 + rank) for rank in range(NUM_RANKS)]
    return [[draw_batch(task, generator) for generator in generators] for _ in range(NUM_STEPS)]


# From torch 2.14 on, each load of sparse tensors says so.
@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants")
@pytest.mark.parametrize("way", ["stock", "ddp"])
def test_sparse_gradients_stay_sparse_and_are_averaged(folder: Path, way: str) -> None:
    model = load_model(MODEL)
    for rank in range(NUM_RANKS):
        path = folder / f"gradients-{way}-{rank}.pt"
        assert path.exists(), (folder / "log").read_text()
        steps = torch.load(path)
        assert len(steps) == NUM_STEPS
        for found, drawn in zip(steps, _drawn(model), strict=True):
            assert {name for name, gradient in found.items() if gradient.is_sparse} == _tables(model)
            assert found.keys() == {variable.name for variable in model.variables}
            for name in _tables(model):
                # A row that one of the ranks touches comes to half of what one does that both touch.
                expected = torch.zeros(model.variable(name).shape)
                for rows in drawn:
                    expected[rows[name]] += 1 / NUM_RANKS
                gradient = found[name].coalesce()
                assert torch.equal(gradient.to_dense(), expected)
                assert torch.equal(gradient.indices()[0], expected[:, 0].nonzero().view(-1))
