"""The doctor with real ranks: scripts with planted causes on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autosync.doctor.examine import _with_links, examine
from autosync.errors import InputError
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import load_cluster
from autosync.trials import probe as room
from autosync.trials.probe import Probed
from tests.helpers.probed_clusters import probed

SCRIPT = Path(__file__).parent / "scripts" / "planted.py"
LIMIT_SECONDS = 120.0


def _doctor(*arguments: str) -> Any:
    command = (sys.executable, "-P", "-m", "autosync.cli", "doctor", "--cluster", "local-2", "--steps", "5", "--json")
    done = subprocess.run((*command, *arguments), capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("planted", "cause", "words"),
    [
        ("slow-backward", "slow_rank", "backward pass"),
        pytest.param("slow-forward", "slow_rank", "forward pass", marks=pytest.mark.slow),
        pytest.param("one-slow-input", "slow_rank", "between its passes", marks=pytest.mark.slow),
        pytest.param("slow-input", "slow_input", "every rank", marks=pytest.mark.slow),
    ],
)
def test_a_planted_cause_is_found_in_a_script(planted: str, cause: str, words: str) -> None:
    found = _doctor("--", str(SCRIPT), planted)
    assert found["schema"] == "autosync.diagnosis/1"
    assert found["num_steps"] == 5
    # Other programs may be a cause as well where the tests run.
    assert found["primary"]["cause"] in {cause, "other_programs"}
    judged = {one["cause"]: one for one in (found["primary"], *found["others"])}[cause]
    assert words in judged["evidence"]
    assert judged["subject"] == ("rank 1 on this" if cause == "slow_rank" else "")
    # 270 ms or more of a step were planted.
    assert judged["seconds"] > 0.15
    assert found["most_speedup"] >= 1


@pytest.mark.slow
def test_what_scripts_do_with_ddp_is_seen() -> None:
    found = _doctor("--", str(SCRIPT), "unused", "own-hook", "accumulates")
    told = {one["cause"]: one["evidence"] for one in (found["primary"], *found["others"])}
    assert told["accumulation"].startswith("3 of a step's backward passes")
    assert "every parameter got its gradient" in told["unused_parameters"]
    assert "32 B" in told["buffer_broadcasts"]
    assert "fp16_compress_hook" in {one["cause"]: one["reason"] for one in found["unknown"]}["bucket_sizes"]


@pytest.mark.slow
def test_a_model_spec_is_replayed() -> None:
    found = _doctor("ncf_small")
    assert found["model"] == "ncf_small"
    assert found["most_speedup"] >= 1


def test_a_replay_on_gpus_is_refused(tmp_path: Path) -> None:
    cluster = replace(load_cluster("local-2"), backend="nccl")
    with pytest.raises(InputError, match=r"ncf_small on local-2, whose backend is nccl \(doctor watches"):
        examine(cluster, target="ncf_small", num_steps=2, seconds=1.0, probes=False, folder=tmp_path)


def test_what_a_probe_has_measured_is_known_to_be_so(work: Any, ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {f"n{number}": 1e8 for number in range(3)}
    nodes = tuple(Node(name=name, host=name, bandwidth_out=rate, bandwidth_in=rate) for name, rate in rates.items())
    cluster = ClusterSpec(name="three", nodes=nodes, launcher="ssh")
    measured = Probed(cluster=probed(cluster, rates, {}), findings=(), seconds=1.0)
    monkeypatch.setattr(room, "probe", lambda *_, **__: measured)
    watched = ranks(works=[work()] * 3, rate=3e7).evidence()
    evidence, _ = _with_links(watched, cluster, probes=True, progress=lambda _: None)
    assert evidence.is_probed
    assert all(link.is_measured for link in evidence.links)
    # Rates that stand in the file are measured too, at another time.
    evidence, _ = _with_links(watched, measured.cluster, probes=False, progress=lambda _: None)
    assert all(link.is_measured for link in evidence.links)
    assert not evidence.is_probed
