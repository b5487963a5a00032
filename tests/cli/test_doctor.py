"""The doctor's command line: its refusals before anything is started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.doctor import examine as examining
from autosync.doctor.diagnosis import Diagnosis, RankedCause
from autosync.doctor.findings import CauseFinding
from autosync.specs.cluster_file import load_cluster, save_cluster

if TYPE_CHECKING:
    from conftest import Shell


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--cluster", "local-2"), "name a MODEL, or a script after --: one of them"),
        (("model.yaml", "--cluster", "local-2", "--", "train.py"), "one of them"),
        (("model.yaml",), "--cluster"),
        (("--cluster", "local-2", "--", "train.sh"), "train.sh is no script"),
        (("--cluster", "nowhere.yaml", "--", "train.py"), "nowhere.yaml"),
        (("resnet", "--cluster", "local-2"), "resnet"),
        (("--cluster", "local-2", "--steps", "1", "--", "train.py"), "--steps"),
    ],
)
def test_mistakes_are_refused(shell: Shell, arguments: tuple[str, ...], told: str) -> None:
    assert shell.run("doctor", *arguments) == 2
    assert told in shell.err
    assert shell.out == ""


def test_a_task_is_not_watched_on_gpus(shell: Shell) -> None:
    save_cluster(Path("gpus.yaml"), replace(load_cluster("cluster.yaml"), backend="nccl"))
    # It is refused before it is profiled, and so before its file is looked for.
    assert shell.run("doctor", "task.py", "--cluster", "gpus.yaml") == 2
    assert "task.py on three, whose backend is nccl (doctor watches training on CPUs)" in shell.err


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("raise ValueError('no data')", "no data"),
        ("print('done')", "trained no torch.nn.parallel.DistributedDataParallel"),
    ],
)
@pytest.mark.slow
def test_a_script_that_shows_no_steps(shell: Shell, source: str, told: str) -> None:
    Path("train.py").write_text(source)
    assert shell.run("doctor", "--cluster", "local-2", "--", "train.py") == 1
    assert told in shell.err
    assert shell.out == ""


def test_a_page_is_written(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = RankedCause(name="slow_rank", finding=CauseFinding(seconds=0.2, told="rank 1 is late"), share=0.5)
    found = Diagnosis(step_seconds=0.4, num_steps=12, primary=slow, others=(), unknown={})
    monkeypatch.setattr(examining, "examine", lambda *_, **__: found)
    options = ("--steps", "5", "--timeout", "2min", "--no-probe")
    command = ("doctor", "--cluster", "local-2", *options, "-o", "page.html", "--", "train.py", "--epochs", "3")
    assert shell.run(*command) == 0, shell.err
    assert "slow rank: 50% of the step" in shell.out
    assert shell.err.splitlines()[-1] == "wrote page.html"
    page = Path("page.html").read_text(encoding="utf-8")
    again = "autosync doctor --cluster local-2 --steps 5 --timeout 120s --no-probe -- train.py --epochs 3"
    assert again in page
    assert "slow rank: 50% of the step" in page
    assert shell.run(*command) == 2
    assert "page.html" in shell.err
