"""Training scripts where a rank that only serves updates: it hears of each step from the first worker alone."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model_file import model_of
from autosync.strategy.bundle import save_bundle
from autosync.strategy.presets import build_preset

HERE = Path(__file__).parent
TASKS = HERE / "expectation_tasks.py"
SERVER = "s0"

CLUSTER = ClusterSpec(
    name="served",
    nodes=(
        Node(name="n0", host="localhost", devices=2, bandwidth_out=1e8, bandwidth_in=1e8),
        Node(name=SERVER, host="localhost", role="server", devices=0, bandwidth_out=1e8, bandwidth_in=1e8),
    ),
)

Overlap = Literal["backward", "forward"]

SCRIPTS: list[tuple[str, str, Overlap]] = [
    ("scales", "scaled_adam", "backward"),
    ("scales", "scaled_fused", "forward"),
    ("scales_and_clips", "scaled_and_clipped", "backward"),
    ("scales_and_clips", "scaled_and_clipped", "forward"),
    ("scales_until_it_fits", "scaled_adam", "forward"),
    ("clips", "clipped", "backward"),
    ("schedules", "everything", "backward"),
    ("accumulates", "everything", "forward"),
    ("clamps", "layers", "backward"),
    ("clamps_data", "layers", "backward"),
    ("clamps_data", "layers", "forward"),
    ("clamps_after_compiling", "layers", "backward"),
    ("clamps_in_forward", "layers", "backward"),
    ("clamps_in_forward", "layers", "forward"),
    ("clips_some_steps", "clipped", "backward"),
    ("zeroes_after_backward", "layers", "backward"),
    ("averages_at_once", "everything", "forward"),
]


def write(folder: Path, task: str, overlap: Overlap) -> str:
    """The path of the bundle by which a task is trained with everything at the server."""
    path = folder / f"{task}-{overlap}.yaml"
    model = model_of(f"{TASKS}:{task}")
    strategy = replace(build_preset("ps_load_balanced", model, CLUSTER), overlap=overlap)
    bundle = bundled(strategy, model, CLUSTER)
    save_bundle(path, bundle)
    return str(path)


@pytest.fixture
def serve() -> Iterator[Callable[[Path, list[str]], None]]:
    """Starts a server of bundles, one after the other; it has an end whatever happens."""
    started: list[subprocess.Popen[bytes]] = []

    def start(folder: Path, bundles: list[str]) -> None:
        (folder / "served.json").write_text(json.dumps(bundles))
        with (folder / "server.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    (sys.executable, HERE / "server_main.py", folder, SERVER),
                    env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    yield start
    for server in started:
        with contextlib.suppress(ProcessLookupError):
            server.kill()
        server.wait()


def test_a_script_comes_out_as_under_ddp(make_ranks: Callable[[str], Any], serve: Callable[..., None]) -> None:
    ranks = make_ranks("one node")
    bundles = [write(ranks.folder, task, overlap) for _, task, overlap in SCRIPTS]
    last = write(ranks.folder, "layers", "backward")
    serve(ranks.folder, [*bundles, last])
    cases = [
        ("expectation_cases:compared", {"script": script, "task": task, "bundle": bundle})
        for (script, task, _), bundle in zip(SCRIPTS, bundles, strict=True)
    ]
    cases.append(("expectation_cases:changes_within_a_step", {"bundle": last}))
    refusals = ["OperationError: 0.weight was changed after the first gradient of this step had come", ""]
    for (*answers, refused), refusal in zip(ranks.run(cases, limit_seconds=100), refusals, strict=True):
        assert dict(zip(SCRIPTS, answers, strict=True)) == dict.fromkeys(SCRIPTS, "")
        assert refused.startswith(refusal)
