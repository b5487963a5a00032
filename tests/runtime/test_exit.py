"""Scripts that just end, as most do: what a session has of threads must not meet the end of the interpreter.

torch's threads and ours, where they outlive it, abort the process ("terminate called without an active exception"), and
a launcher then takes a training that went well for one that failed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIMIT_SECONDS = 240
PRESETS = ("ddp", "ps_load_balanced", "bytescheduler", "sharded")
QUICK = PRESETS[:1]
WAYS = ("ends", "destroys the group", "raises", "raises before its step", "exits")

# The first test of a preset waits for the scripts of all its tests.
pytestmark = pytest.mark.timeout(LIMIT_SECONDS + 60)


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PRESETS]
)
def codes(
    request: pytest.FixtureRequest,
    make_bundle: Callable[[Path, str, str, str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, list[int]]:
    """Each rank's exit code under a preset, by the way in which the script ends."""
    folder = tmp_path_factory.mktemp("exit")
    # To tear an interpreter down takes a second of each rank.
    chosen = {item.callspec.params["way"] for item in request.session.items if item.path == request.path}
    ways = [way for way in WAYS if way in chosen]
    bundle = make_bundle(folder, request.param, "small", "one node")
    (folder / "cases.json").write_text(json.dumps([[bundle, "small", way] for way in ways]))
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        (sys.executable, HERE / "exit_main.py", folder),
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip(ways, found, strict=True))


@pytest.mark.parametrize("way", ["ends", pytest.param("destroys the group", marks=pytest.mark.slow)])
def test_a_script_that_ends_has_ended_well(way: str, codes: dict[str, list[int]]) -> None:
    assert codes[way] == [0, 0]


@pytest.mark.parametrize(
    ("way", "code"),
    [("raises", 1), pytest.param("raises before its step", 1, marks=pytest.mark.slow), ("exits", 7)],
)
def test_who_goes_wrong_ends_with_its_own_code_and_holds_nobody_up(
    way: str, code: int, codes: dict[str, list[int]]
) -> None:
    other, wrong = codes[way]
    assert wrong == code
    # Its last step may have had all it needed; else the other rank hears that nobody is there. Never is it killed.
    assert other in {0, 1}
