"""For every input, a reader ends with a value or with an error of ours: benchmarks/fuzz/fuzz_files.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fuzz import commands, documents, fuzz_files
from benchmarks.fuzz.kinds import KINDS, Failure

FUZZ = Path(__file__).parents[2] / "benchmarks" / "fuzz"
sys.path.insert(0, str(Path(__file__).parent))

import bad_readers  # noqa: E402 - found by the line above

SEED = "20261125"
DOORS = ["link", "agent", "gate", "channel", "conversation"]
ONE_OUTCOME = {
    "task_name": "refused",
    "gate": "refused",
    "channel": "refused",
    "agent": "taken",
    "conversation": "taken",
}
DOCUMENTS = ["cluster", "resource_spec", "model", "strategy", "bundle"]


def _fuzzed(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(FUZZ / "fuzz_files.py"), "--seed", SEED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    failures = {kind: tally["failures"] for kind, tally in found["kinds"].items() if tally["failures"]}
    assert failures == {}, done.stderr
    assert done.returncode == 0
    return found


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "kinds",
    [
        ["study", "journal"],
        pytest.param(["ranker", "trace"], marks=pytest.mark.slow),
        pytest.param(["checkpoint", "invitation"], marks=pytest.mark.slow),
        DOORS,
    ],
)
def test_a_slice_of_inputs(kinds: list[str]) -> None:
    # For doors, a dozen inputs to warm up would be more than those that count. Studies make folders once.
    _check("30", kinds, "--warm-up", "3" if kinds == DOORS else "12")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_inputs_of_every_kind() -> None:
    for kind, tally in _check("5000", list(KINDS)).items():
        # The mutants are neither deadly nor harmless, but where all that can be seen is that the other side lives on.
        wanted = {"refused", "taken"} if kind not in ONE_OUTCOME else {ONE_OUTCOME[kind]}
        assert set(tally["outcomes"]) == wanted, kind


def _check(num_inputs: str, kinds: list[str], *options: str) -> dict[str, Any]:
    found = _fuzzed("--inputs", num_inputs, *options, *(word for kind in kinds for word in ("--kind", kind)))
    assert found["kinds"].keys() == set(kinds)
    tallies = found["kinds"].items()
    assert {kind: tally["inputs"] for kind, tally in tallies} == fuzz_files.shared_out(int(num_inputs), kinds)
    assert {outcome for _, tally in tallies for outcome in tally["outcomes"]} <= {"refused", "taken"}
    tallied: dict[str, Any] = found["kinds"]
    return tallied


def test_what_no_reader_may_do_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_files, "WORKER", Path(bad_readers.__file__))
    answers = list(fuzz_files.tried("bad", "0", range(len(bad_readers.READERS))))
    found = {reader.__name__: answer for reader, answer in zip(bad_readers.READERS, answers, strict=True)}
    assert {name: answer["outcome"] for name, answer in found.items() if "why" not in answer} == {
        "refuses": "refused",
        "cannot": "refused",
        "takes": "taken",
    }
    for name, words in {
        "raises": "raised KeyError: 'nothing'",
        "exits": "raised SystemExit: 2",
        "runs_code": "task.py was run",
        "makes_the_canary": "code that the input holds was run",
        "unpickles": "pickle asked for posix.getcwd",
        "starts_a_program": "a program was started",
        "changes_another_file": "victim was opened to write",
        "changes_it_through_a_link": "victim was opened to write",
        "takes_memory": "MB of memory",
        "takes_time": "s of processor time",
        "hangs": "hang: nothing was done",
        "has_a_thread_that_dies": "a thread died: LookupError: dead",
        "ends_the_process": "the process ended with -6",
    }.items():
        assert words in found[name]["why"], name


def test_the_same_number_is_the_same_input(tmp_path: Path) -> None:
    kept = []
    for name in ("one", "two"):
        folder = tmp_path / name
        _fuzzed("--kind", "model", "--only", "7", "--keep", str(folder))
        (file,) = (folder / "box-7").iterdir()
        kept.append(file.read_bytes())
    assert kept[0] == kept[1]


def test_what_a_log_has_is_not_tried_again(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    first = _fuzzed("--kind", "resource_spec", "--inputs", "12", "--log", str(log))
    lines = log.read_bytes().splitlines(keepends=True)
    assert len(lines) == 12
    # As a process that was killed leaves it.
    log.write_bytes(b"".join(lines[:5]) + lines[5][:10])
    again = _fuzzed("--kind", "resource_spec", "--inputs", "12", "--log", str(log))
    assert again["kinds"]["resource_spec"]["outcomes"] == first["kinds"]["resource_spec"]["outcomes"]
    answers = [json.loads(line) for line in log.read_bytes().splitlines()]
    assert sorted(answer["number"] for answer in answers) == list(range(12))


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_good_files_are_good(kind: str, tmp_path: Path) -> None:
    for number, original in enumerate(dict.fromkeys(documents.originals(tmp_path, kind))):
        # Each file by one of its commands, in turn.
        path = tmp_path / f"{kind}{original.ending}"
        path.write_text(original.text, encoding="utf-8")
        asked = original.commands[number % len(original.commands)]
        arguments = [str(path) if argument == "FILE" else argument for argument in asked]
        assert commands.command(arguments, handed_in=[str(path)]) == "taken", asked


@pytest.mark.parametrize(
    ("printed", "code", "why"),
    [
        ("Traceback (most recent call last):\n", 2, "Traceback"),
        ("error: this is a bug in autosync: KeyError\n", 1, "this is a bug"),
        ("error: no file is named (a rule)\n", 2, "no line of the right form"),
        ("error: {path}:1: no rule\n", 2, "no line of the right form"),
        ("error: {path}:4: what (a rule)\n", 2, "a line that the file of 3 lines does not have"),
        ("error: {path}:1: what (a rule)\nmore\n", 2, "no line of the right form"),
        ("error: other.yaml:1: what (a rule)\n", 2, "another file than was handed in"),
        ("error: {path}:1: \x1b[31m (a rule)\n", 2, "what a terminal would obey"),
        ("error: {path}:1: what (a rule)\n", 1, "exit 1"),
        ("a warning\n", 0, "exit 0, stderr"),
        ("", 2, "exit 2 without an error"),
        ("", -11, "exit -11"),
    ],
)
def test_what_is_not_right_is_found(*, printed: str, code: int, why: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"a\nb\n")
    with pytest.raises(Failure, match=why):
        commands.judge(["cluster", "show"], code, "", printed.format(path=path), handed_in=[str(path)])


def test_stdout_that_is_no_document_is_found() -> None:
    with pytest.raises(Failure, match="no JSON document"):
        commands.judge(["cluster", "show", "--json"], 0, "{", "")


def test_every_kind_has_inputs() -> None:
    assert min(fuzz_files.shared_out(20, list(KINDS)).values()) >= 1
    assert sum(fuzz_files.shared_out(20_000, list(KINDS)).values()) >= 20_000 - len(KINDS)
    assert os.access(fuzz_files.WORKER, os.R_OK)


def test_a_name_that_the_system_refuses_is_shown_without_escapes() -> None:
    arguments = ["strategy", "build", "ddp", "--cluster", "2-hosts", "--", "\x1b[31m" + "x" * 5000 + ".py"]
    assert commands.command(arguments) == "refused"
