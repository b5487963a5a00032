"""A training as a whole, without processes: the first cause, the exit code, and signals."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import pytest

from autosync.launchers import script_run as module
from autosync.launchers.request import LOST, LaunchRequest, Process, TrainingScript
from autosync.launchers.script_run import (
    ScriptOutcome,
    ScriptRun,
    passed_on_settings,
    script_behind_python,
    script_of,
)
from autosync.signatures import SECRET_VARIABLE
from autosync.specs.cluster import ClusterSpec, Node

CLUSTER = ClusterSpec(
    name="c",
    nodes=(
        Node(name="n0", host="h0", devices=2, bandwidth_out=1e8, bandwidth_in=1e8),
        Node(name="s0", host="h1", role="server", devices=0, bandwidth_out=1e8, bandwidth_in=1e8),
    ),
    python="/opt/python",
)


class Acting:
    """A launcher and its launch, which acts as a test says: `turns` are called one after another as it is asked."""

    control: Literal["loopback", "file", "relayed"] = "loopback"

    def __init__(self, folder: Path, turns: Sequence[Callable[[Acting], None]]) -> None:
        self._folder = folder
        self._turns = list(turns)
        self.codes: list[int | None] = [None, None, None]
        self.order: list[int] = []
        self.gone: dict[int, str] = {}
        self.signals: list[int] = []
        self.num_stops = 0

    def end(self, place: int, code: int, words: str = "") -> None:
        self.codes[place] = code
        self.order.append(place)
        (self._folder / f"{place}.log").write_text(words)

    def request(self) -> LaunchRequest:
        places = [("worker", "n0"), ("worker", "n0"), ("server", "s0")]
        return LaunchRequest(
            processes=tuple(
                Process(rank=i, role=role, node=node, host="h", command=("x",), log=self._folder / f"{i}.log")  # type: ignore[arg-type]
                for i, (role, node) in enumerate(places)
            )
        )

    def hold(self, _cluster: ClusterSpec) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def start(self, request: LaunchRequest) -> Acting:
        self.started = request
        return self

    def exit_codes(self) -> Sequence[int | None]:
        if self._turns:
            self._turns.pop(0)(self)
        return list(self.codes)

    def lost(self) -> Mapping[int, str]:
        return self.gone

    def ended(self) -> Sequence[int]:
        return self.order

    def signal(self, number: int) -> None:
        self.signals.append(number)

    def stop(self) -> None:
        self.num_stops += 1


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[ScriptOutcome, Acting]]:
    """Runs a training with an acting launcher to its end."""
    for name in ("POLL_SECONDS", "CAUSE_SECONDS", "PARTING_SECONDS", "SERVERS_SECONDS"):
        monkeypatch.setattr(module, name, 0.001)

    def run(*turns: Callable[[Acting], None], asked: Sequence[int] = ()) -> tuple[ScriptOutcome, Acting]:
        acting = Acting(tmp_path, turns)
        monkeypatch.setattr(module, "plan_script", lambda *_: (acting, acting.request()))
        training = ScriptRun(CLUSTER, TrainingScript(command=("x",)), tmp_path, show=lambda _text: None)
        for number in asked:
            training.ask_to_end(number)
        ended = training.run(started=lambda _request: None)
        assert acting.num_stops == 1
        return ended, acting

    return run


Train = Callable[..., tuple[ScriptOutcome, Acting]]


def test_all_that_end_with_0_are_a_success(train: Train) -> None:
    ended, _ = train(lambda a: [a.end(place, 0) for place in (0, 1, 2)] and None)
    assert ended == ScriptOutcome(code=0)


def test_workers_and_servers_have_one_secret_that_no_plan_has(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    drawn = set()
    for _ in range(2):
        _, acting = train(lambda a: [a.end(place, 0) for place in (0, 1, 2)] and None)
        assert all(SECRET_VARIABLE not in process.environment for process in acting.request().processes)
        (secret,) = {process.environment[SECRET_VARIABLE] for process in acting.started.processes}
        assert len(secret) == 64
        drawn.add(secret)
    assert len(drawn) == 2, "another one each time"
    monkeypatch.setenv(SECRET_VARIABLE, "what the user has set here")
    _, acting = train(lambda a: [a.end(place, 0) for place in (0, 1, 2)] and None)
    assert {process.environment[SECRET_VARIABLE] for process in acting.started.processes} == {
        "what the user has set here"
    }


def test_a_server_that_stays_is_no_failure(train: Train) -> None:
    ended, acting = train(lambda a: [a.end(place, 0) for place in (0, 1)] and None)
    assert ended == ScriptOutcome(code=0)
    assert acting.codes[2] is None


def test_the_first_that_failed_is_named_first_and_gives_the_code(train: Train) -> None:
    def fail(acting: Acting) -> None:
        acting.end(1, -signal.SIGSEGV)
        acting.end(0, 1, "before\nRuntimeError: connection closed by peer\n")

    ended, _ = train(fail)
    assert ended.code == 139
    assert ended.words == (
        "rank 1 on n0: killed by SIGSEGV",
        "rank 0 on n0: exit code 1: RuntimeError: connection closed by peer",
    )


def test_a_lost_host_is_said_once(train: Train) -> None:
    def lose(acting: Acting) -> None:
        for place in (0, 1):
            acting.end(place, LOST)
            acting.gone[place] = "n0 (h0): no sign of life for 15 s"

    ended, _ = train(lose)
    assert ended == ScriptOutcome(code=255, words=("n0 (h0): no sign of life for 15 s",))


def test_a_server_that_fails_ends_the_training(train: Train) -> None:
    ended, _ = train(lambda a: a.end(2, 2, "error: no node that only serves is named s0"))
    assert ended.words == ("rank 2 on s0: exit code 2: error: no node that only serves is named s0",)


def test_a_signal_is_passed_on_once_and_gives_the_code(train: Train) -> None:
    ended, acting = train(asked=[signal.SIGTERM])
    assert acting.signals == [signal.SIGTERM]
    assert ended == ScriptOutcome(code=143, words=("all ranks were ended on SIGTERM",))
    # Whatever the ranks make of it.
    ended, _ = train(lambda a: [a.end(place, 0) for place in (0, 1, 2)] and None, asked=[signal.SIGINT])
    assert ended.code == 130


def test_a_second_signal_kills_the_ranks_at_once(train: Train) -> None:
    ended, acting = train(asked=[signal.SIGINT, signal.SIGTERM])
    assert (ended.code, acting.signals) == (130, [signal.SIGKILL])


def test_a_signal_is_passed_on_before_any_output_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    acting = Acting(tmp_path, [])
    (tmp_path / "0.log").write_text("step 0\n")
    monkeypatch.setattr(module, "plan_script", lambda *_: (acting, acting.request()))

    def show(_text: str) -> None:
        assert acting.signals == [signal.SIGINT]
        raise BrokenPipeError

    training = ScriptRun(CLUSTER, TrainingScript(command=("x",)), tmp_path, show=show)
    training.ask_to_end(signal.SIGINT)
    with pytest.raises(BrokenPipeError):
        training.run(started=lambda _request: None)


def test_a_signal_while_the_last_output_is_shown_gives_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acting = Acting(tmp_path, [lambda a: [a.end(place, 0, "last words") for place in (0, 1, 2)] and None])
    monkeypatch.setattr(module, "plan_script", lambda *_: (acting, acting.request()))
    training = ScriptRun(
        CLUSTER, TrainingScript(command=("x",)), tmp_path, show=lambda _text: training.ask_to_end(signal.SIGTERM)
    )
    assert training.run(started=lambda _request: None).code == 143


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("train.py", "-x"), ("/opt/python", "-P", "-m", "autosync.run", "train.py", "-x")),
        (("-m", "pkg.train"), ("/opt/python", "-P", "-m", "autosync.run", "-m", "pkg.train")),
        (("bash", "run.sh"), ("bash", "run.sh")),
    ],
)
def test_python_files_and_modules_run_in_the_python_of_the_cluster(
    command: tuple[str, ...], words: tuple[str, ...]
) -> None:
    bundles = [Path("b.yaml"), Path("c.yaml")]
    script = script_of(command, cluster=CLUSTER, bundles=bundles, has_servers=True, environment={})
    assert script.command == words
    assert script.server_command == ("/opt/python", "-P", "-m", "autosync.cli", "serve")
    assert script.files == {"AUTOSYNC_BUNDLE": Path("b.yaml"), "AUTOSYNC_BUNDLE_2": Path("c.yaml")}


@pytest.mark.parametrize(
    ("command", "behind"),
    [
        ("python train.py --epochs 3", "train.py"),
        ("/opt/venv/bin/python3.11 -u -m pkg.train x", "-m pkg.train"),
        ("python -m autosync.run train.py", ""),
        ("python -c pass", ""),
        ("python_train.py", ""),
        ("bash run.sh train.py", ""),
    ],
)
def test_a_script_that_a_command_gives_to_python_is_seen(command: str, behind: str) -> None:
    assert script_behind_python(command.split()) == tuple(behind.split())


def test_settings_are_given_or_taken_from_here() -> None:
    assert passed_on_settings({"HERE": "h"}, ["HERE", "NEW=a=b", "EMPTY="]) == {"HERE": "h", "NEW": "a=b", "EMPTY": ""}
    with pytest.raises(KeyError, match="ABSENT"):
        passed_on_settings({}, ["ABSENT"])
