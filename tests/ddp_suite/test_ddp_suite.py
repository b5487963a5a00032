"""The suite itself: a slice of it passes, it notices what is wrong, and its page lists what is refused."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.forks import Forked

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "ddp-behaviour.md"
LIMIT_SECONDS = 400


def run(folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """The exit code, the JSON document, and what was printed. Whatever still runs at the end is ended."""
    output = folder / "suite.json"
    process = Forked(
        (sys.executable, HERE / "run.py", "--output", output, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    try:
        (printed,) = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        if process.poll() is None:
            # It ends its ranks when it is asked to end.
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    return process.returncode, json.loads(output.read_text()), printed


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_SECONDS + 60)
def test_a_slice_is_as_under_stock_ddp(tmp_path: Path) -> None:
    code, document, printed = run(tmp_path, "--slice")
    assert code == 0, printed
    assert set(document["counts"]) <= {"same", "more", "refused"}
    assert document["counts"]["same"] > 150


def test_whatever_is_not_as_under_stock_ddp_is_noticed(tmp_path: Path) -> None:
    """Each kind of fault by its name; a fault takes nothing but itself down."""
    faults = {
        "fault_wrong": "wrong",
        "fault_wrong_on_one_rank": "wrong",
        "fault_waits_for_the_other": "hang",
        "fault_crash": "crash",
        "fault_raised": "raised",
        "fault_refused_on_one_rank": "wrong",
        "fault_unlisted": "unlisted",
    }
    options = ("--load", str(HERE / "faults.py"), "--ranks", "2", "--strategies", "ddp,fsdp")
    code, document, printed = run(tmp_path, *options, "--only", "plain", *faults, "fault_of_ddp")
    found = {key: result["verdict"] for key, result in document["results"].items()}
    expected = {f"{name} / {way} / 2": kind for name, kind in faults.items() for way in ("ddp", "fsdp")}
    expected |= {f"plain / {way} / 2": "same" for way in ("ddp", "fsdp")}
    expected |= {f"fault_of_ddp / {way} / 2": "same" for way in ("ddp", "fsdp")}
    assert found == expected
    assert code == 1
    assert "crash: fault_crash / fsdp / 2" in printed


def test_a_hang_ends_when_its_time_is_over(tmp_path: Path) -> None:
    options = ("--load", str(HERE / "faults.py"), "--ranks", "2", "--strategies", "ddp", "--limit", "3")
    code, document, _ = run(tmp_path, *options, "--only", "fault_hang")
    assert code == 1
    assert document["counts"] == {"hang": 1}
    assert "rank 1: still at it" in document["results"]["fault_hang / ddp / 2"]["words"]


def test_good_results_are_kept(tmp_path: Path) -> None:
    options = ("--ranks", "2", "--strategies", "ddp")
    assert run(tmp_path, *options, "--only", "plain")[0] == 0
    path = tmp_path / "suite.json"
    document = json.loads(path.read_text())
    document["results"]["plain / ddp / 2"]["words"] = "kept"
    path.write_text(json.dumps(document))
    code, document, _ = run(tmp_path, *options, "--resume", "--only", "plain", "one_parameter")
    assert code == 0
    assert {key: result["words"] for key, result in document["results"].items()} == {
        "plain / ddp / 2": "kept",
        "one_parameter / ddp / 2": "",
    }


def test_unknown_names_are_bad_input(tmp_path: Path) -> None:
    done = subprocess.run(
        (sys.executable, HERE / "run.py", "--only", "nothing_of_the_kind"),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "nothing_of_the_kind is not known" in done.stderr


def test_the_page_lists_what_is_refused() -> None:
    sys.path.insert(0, str(HERE))
    try:
        import refusals
    finally:
        sys.path.remove(str(HERE))
    table = PAGE.read_text(encoding="utf-8").partition("## How it is checked")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert rows[1:] == refusals.rows()


def test_every_listed_behaviour_is_one(tmp_path: Path) -> None:
    done = subprocess.run(
        (sys.executable, HERE / "run.py", "--list"), capture_output=True, text=True, check=True, timeout=60
    )
    names = {line.split(": ")[1] for line in done.stdout.splitlines()}
    assert len(names) >= 150
    sys.path.insert(0, str(HERE))
    try:
        import chosen
        import refusals
    finally:
        sys.path.remove(str(HERE))
    assert {name for one in refusals.REFUSALS for name in one.behaviours} <= names
    assert set(chosen.SLICE) <= names
