"""`autosync tune` as a command: its output, its dry run, its exit codes, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.cli.tune import tune
from autosync.datasets.studies import read_study
from autosync.errors import OperationError
from autosync.search.measurement_effort import EFFORTS
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import save_cluster
from autosync.testbed.layout import cluster_key
from autosync.testbed.requirements import find_folders
from autosync.testing.trials import FakeService, FakeSteps

if TYPE_CHECKING:
    from conftest import Shell

TASKS = Path(__file__).parents[1] / "search" / "tiny.py"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives the command a service that runs nothing."""

    def use(**steps: FakeSteps) -> None:
        service = FakeService({name.replace("_", " "): one for name, one in steps.items()}, others=FakeSteps(seconds=1))
        monkeypatch.setattr("autosync.search.tuning_plan.TrialService", lambda **_: service)

    return use


@pytest.mark.slow
def test_json_is_one_document_and_the_study_can_be_exported(shell: Shell) -> None:
    arguments = ("--cluster", "local-2", "--trials", "2", "--effort", "quick", "--study", "s", "-o", "best.yaml")
    summary = shell.json("tune", TASKS, *arguments)
    assert summary["schema"] == "autosync.summary/1"
    assert summary == json.loads(Path("autosync-studies/s/summary.json").read_text())
    assert "trying stock DDP (trial 1 of 2)" in shell.err
    assert "trial 2 of 2: " in shell.err
    assert Path("best.yaml").exists()
    assert shell.run("export", "s", "-o", "records.jsonl") == 0, shell.err
    num_records = len(Path("records.jsonl").read_text().splitlines())
    assert num_records == summary["num_trials"] + summary["num_baseline_trials"]
    assert (summary["num_trials"], num_records > 2) == (2, True)


def _tune(*options: str) -> tuple[str, ...]:
    return ("tune", "model.yaml", "--cluster", "local-2", "--study", "s", "--proposer", "mcmc", *options)


def test_the_verdict_for_people(shell: Shell, fake: Callable[..., None]) -> None:
    fake(stock_DDP=FakeSteps(seconds=2))
    assert shell.run(*_tune("--trials", "4")) == 0, shell.err
    lines = shell.out.splitlines()
    assert max(map(len, lines)) <= 100
    tried, table = (" ".join(block.split("\n")) for block in shell.out.split("\n\n")[:2])
    assert tried.startswith("4 strategies tried (stock DDP, ")
    assert tried.endswith("). Stock DDP and the fastest others, measured again in turn:")
    assert table.split()[:7] == ["ms", "a", "step", "(95", "%", "range)", "speed-up"]
    assert " stock DDP  " in table
    ratios = [line for line in lines if " times as fast as stock DDP (" in line and not line.startswith("The winner")]
    assert len(ratios) >= 2
    assert all(line.startswith(("preset:", "mutated", "stock DDP, ")) for line in ratios)
    (winner,) = (line for line in lines if line.startswith("The winner is "))
    assert " times as fast as stock DDP (" in winner
    assert any(line.startswith("  what it does: all variables are ") for line in lines)
    assert "How to use it:" in lines
    assert lines[-2:] == ["bundle: autosync-studies/s/best.yaml", "study:  autosync-studies/s"]


def test_no_difference_is_said_plainly(shell: Shell, fake: Callable[..., None]) -> None:
    fake()
    assert shell.run(*_tune("--trials", "2")) == 0, shell.err
    lines = shell.out.splitlines()
    assert any(line.startswith("no difference found between preset:ddp ") for line in lines)
    keep = lines.index("Nothing tried is faster than stock DDP for certain: keep it.")
    assert lines[keep + 1].startswith("Communication that compute does not hide is ")
    assert lines[-2] == "bundle: autosync-studies/s/best.yaml (stock DDP's buckets as a strategy)"


def test_stock_ddp_alone(shell: Shell, fake: Callable[..., None]) -> None:
    fake()
    assert shell.run(*_tune("--trials", "1")) == 0, shell.err
    lines = shell.out.splitlines()
    assert lines[0] == "1 strategy tried. Stock DDP alone:"
    assert shell.out.split("\n\n")[2].startswith("Nothing was there to compare with stock DDP: keep it.\n")
    assert lines[-1] == "study:  autosync-studies/s"


def test_all_trials_failed(shell: Shell, fake: Callable[..., None]) -> None:
    fake(stock_DDP=FakeSteps(seconds=1, fails_at=2))
    assert shell.run(*_tune("--trials", "1", "--json")) == 1
    assert shell.out == ""
    last = shell.err.splitlines()[-1]
    assert last.startswith("error: all 1 trials failed; the first: rank 0: stock DDP fails here ")
    assert last.endswith("(the study is kept in autosync-studies/s)")
    assert Path("autosync-studies/s/journal.log").exists()


def test_a_dry_run_shows_what_would_be_started_and_tried(shell: Shell) -> None:
    before = sorted(Path.cwd().rglob("*"))
    assert shell.run(*_tune("--trials", "3", "--dry-run")) == 0, shell.err
    lines = shell.out.splitlines()
    assert lines[0] == "would be started on local-2 (launcher local):"
    assert [line.split()[:3] for line in lines[1:3]] == [
        ["localhost:", f"RANK={rank}", f"LOCAL_RANK={rank}"] for rank in (0, 1)
    ]
    assert "AUTOSYNC_CONTROL_TOKEN=HIDDEN " in lines[1]
    assert lines[1].endswith(
        " -m autosync.trials.rank_worker ADDRESS > autosync-studies/s/logs/ranks-1/rank-0.log 2>&1"
    )
    # This proposer looks at what came of one before it says the next.
    assert lines[4] == "would be tried, first of 3:"
    assert lines[5] == "  stock DDP: stock DDP as it ships"
    assert lines[6].startswith("  preset:ddp ")
    assert lines[6].endswith(": all variables are all-reduced in 2 messages")
    assert lines[7:] == ["", "study: autosync-studies/s"]
    assert shell.run(*_tune("--dry-run", "--trials", "2")) == 0
    assert "would be tried, in this order:" in shell.out
    assert shell.run(*_tune("--dry-run")) == 0
    assert "would be measured in turn and proved, before any other trial:" in shell.out
    assert shell.run(*_tune("--dry-run", "--trials", "0")) == 0
    assert "would be tried" not in shell.out
    for name, effort in EFFORTS.items():
        first = shell.json(*_tune("--dry-run", "--effort", name))["first"]
        assert len(first) == 1 + effort.num_predicted
    (only,) = shell.json(*_tune("--dry-run", "--budget", "0s"))["first"]
    assert only["origin"] == "baseline:torch_ddp"
    assert sorted(Path.cwd().rglob("*")) == before


def test_a_dry_run_as_a_document(shell: Shell) -> None:
    document = shell.json(*_tune("--trials", "2", "--dry-run"))
    assert (document["schema"], document["study"]) == ("autosync.tuning-plan/1", "autosync-studies/s")
    assert (document["model"], document["cluster"], document["num_trials"]) == ("tiny", "local-2", 2)
    assert document["launch"]["launcher"] == "local"
    first, second = document["launch"]["processes"]
    assert (first["rank"], second["environment"]["RANK"]) == (0, "1")
    assert first["environment"]["AUTOSYNC_CONTROL_TOKEN"] == "HIDDEN"
    assert first["command"][-3:] == ["-m", "autosync.trials.rank_worker", "ADDRESS"]
    assert [one["origin"] for one in document["first"]] == ["baseline:torch_ddp", "preset:ddp"]
    assert document["first"][0]["strategy_id"] is None
    assert document["first"][1]["in_words"] == "all variables are all-reduced in 2 messages"


def test_the_efforts_are_those_that_there_are() -> None:
    (option,) = [parameter for parameter in tune.params if parameter.name == "effort"]
    assert tuple(option.type.choices) == tuple(EFFORTS)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere.yaml", "--cluster", "local-2"), "nowhere.yaml: cannot be read: no such file"),
        (("nowhere.py", "--cluster", "local-2"), "nowhere.py: no such file"),
        ((TASKS, "--cluster", "nowhere"), "nowhere"),
        ((TASKS, "--cluster", "local-2", "--study", "a/b"), "'a/b' is no name of a study"),
        ((TASKS, "--cluster", "local-2", "--budget", "soon"), "soon"),
        ((TASKS, "--cluster", "local-2", "--trials", "-1"), "-1"),
        ((TASKS, "--cluster", "local-2", "--training", "0s"), "(above 0)"),
        ((TASKS, "--cluster", "local-2", "--training", "1h", "--trials", "5"), "leave out one"),
        ((TASKS, "--cluster", "local-2", "--trial-timeout", "0s"), "(above 0)"),
        ((TASKS, "--cluster", "local-2", "--seed", "99999999999999"), "--seed"),
        ((TASKS, "--cluster", "local-2", "--effort", "great"), "'great' is not one of"),
        ((TASKS, "--cluster", "nowhere", "--dry-run"), "nowhere"),
        ((TASKS, "--cluster", "local-2", "--dry-run", "-o", "there.yaml"), "there.yaml exists"),
        ((TASKS, "--cluster", "local-2", "-o", "there.yaml"), "there.yaml exists"),
        ((TASKS, "--cluster", "local-2", "-o", "."), ". is a folder"),
        ((TASKS,), "--cluster"),
        (("--cluster", "local-2"), "MODEL"),
        (("--resume", "s", TASKS), "leave out MODEL and --cluster"),
        (("--resume", "s", "--replay", "s"), "not both"),
        (("--resume", "nowhere"), "unknown study 'nowhere'"),
        (("--resume", "s", "--seed", "0", "--target", "ddp"), "leave out --target and --seed"),
        ((TASKS, "--cluster", "local-2", "--prior", "nowhere"), "--prior nowhere: there is no such file or folder"),
        ((TASKS, "--cluster", "local-2", "--prior", ".", "--simulator", "timeline"), "timeline learns nothing from"),
        ((TASKS, "--cluster", "local-2", "--prior", "shipped", "--simulator", "linear"), "nothing ships for"),
        ((TASKS, "--cluster", "local-2", "--allow", "lossy,wrong"), "'wrong' is no class to allow"),
    ],
)
def test_bad_input(arguments: tuple[str | Path, ...], words: str, shell: Shell) -> None:
    Path("there.yaml").write_text("mine")
    assert shell.run("tune", *arguments) == 2
    assert words in shell.err
    assert shell.out == ""
    assert Path("there.yaml").read_text() == "mine"
    assert not Path("autosync-studies").exists()


Start = Callable[..., "subprocess.Popen[str]"]
AwaitGone = Callable[[Iterable[int]], None]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts tuning runs, each as a terminal would: in a process group of its own, which Ctrl-C reaches as a whole."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from autosync.cli.main import main; main()", "tune", *arguments]
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.slow
def test_ctrl_c_ends_a_trial_that_hangs(start: Start, tmp_path: Path, await_gone: AwaitGone) -> None:
    tuning = start(f"{TASKS}:hangs_in_trials", "--cluster", "local-2", "--study", "s")
    logs = tmp_path / "autosync-studies" / "s" / "logs" / "ranks-1"
    deadline = time.monotonic() + 60
    while len(ranks := _children(tuning.pid)) < 2 or not (logs / "rank-1.log").exists():
        assert time.monotonic() < deadline, "the trial did not begin"
        assert tuning.poll() is None, tuning.communicate()
        time.sleep(0.05)
    os.killpg(tuning.pid, signal.SIGINT)
    out, err = tuning.communicate(timeout=30)
    assert tuning.returncode == 130, err
    assert out == ""
    assert err.splitlines()[-3:] == [
        "no trials are kept in autosync-studies/s",
        "to go on: autosync tune --resume s",
        "interrupted",
    ]
    await_gone(ranks)
    assert (tmp_path / "autosync-studies" / "s" / "journal.log").exists()


@pytest.fixture
def emulated(tmp_path: Path) -> ClusterSpec:
    try:
        find_folders()
    except OperationError as error:
        pytest.skip(str(error))
    nodes = tuple(Node(name=f"n{i}", host=f"n{i}", bandwidth_out=1e8, bandwidth_in=1e8) for i in range(2))
    cluster = ClusterSpec(name=f"ctrl-c-{os.getpid()}", nodes=nodes, launcher="testbed")
    save_cluster(tmp_path / "emulated.yaml", cluster)
    return cluster


def test_ctrl_c_keeps_the_trials_and_leaves_no_testbed(
    start: Start, tmp_path: Path, emulated: ClusterSpec, await_gone: AwaitGone
) -> None:
    how = ("--study", "s", "--effort", "quick", "--trials", "50")
    tuning = start("mobilenet_v2@x0.1", "--cluster", "emulated.yaml", *how)
    assert tuning.stderr is not None
    seen = []
    for line in tuning.stderr:
        seen.append(line)
        if line.startswith("trial 1 of 50: "):
            break
    places = find_folders()
    assert places.existing(cluster_key(emulated)), seen
    ranks = _children(tuning.pid)
    os.killpg(tuning.pid, signal.SIGINT)
    out, err = tuning.communicate(timeout=60)
    assert tuning.returncode == 130, err
    assert out == ""
    kept, resume, last = err.splitlines()[-3:]
    assert (resume, last) == ("to go on: autosync tune --resume s", "interrupted")
    records = list(read_study(tmp_path / "autosync-studies" / "s"))
    assert len(records) >= 1
    assert kept == f"{len(records)} trial{'s are' if len(records) > 1 else ' is'} kept in autosync-studies/s"
    assert places.existing(cluster_key(emulated)) == ()
    await_gone(ranks)


def _children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
