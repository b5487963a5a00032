"""`autosync testbed` as users type it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import save_cluster
from autosync.testbed import live

MAIN = "from autosync.cli.main import main; main()"


def _autosync(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MAIN, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def file(make_cluster: Callable[..., ClusterSpec], tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    save_cluster(path, make_cluster((100, 300), 50))
    return path


def test_the_life_of_a_testbed(file: Path) -> None:
    name = json.loads(_autosync("cluster", "show", file, "--json").stdout)["name"]
    planned = _autosync("testbed", "up", file, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.startswith("ip netns add autosync-")
    assert _autosync("testbed", "status", file).stderr == f"error: no testbed of {name} is up\n"

    shown = _autosync("testbed", "up", file)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"{name}: kept, not in use\n\nnode  namespace ")
    assert "100 Mbit/s  300 Mbit/s" in shown.stdout

    sleeper = subprocess.Popen([*live.find_all()[-1][0].enter("n0"), "true"])
    assert sleeper.wait(10) == 0
    result = _autosync("testbed", "exec", file, "n1", "--", "sh", "-c", "ip -json address show dev eth0; exit 7")
    assert result.returncode == 7, result.stderr
    [link] = json.loads(result.stdout)

    status = json.loads(_autosync("testbed", "status", file, "--json").stdout)
    [bed] = status["testbeds"]
    assert (bed["name"], bed["kept"], bed["used_by"], bed["faults"]) == (name, True, [], [])
    assert link["addr_info"][0]["local"] == bed["hosts"][1]["address"]
    first = bed["hosts"][0]
    assert (first["node"], first["rate_out"], first["rate_in"]) == ("n0", 12_500_000, 37_500_000)
    assert first["processes"] == []
    assert {"bytes_out", "bytes_in", "namespace"} <= first.keys()

    assert _autosync("testbed", "down", file).stderr == f"taken down: {name}\n"
    assert _autosync("testbed", "down", file).stderr == "no such testbed is up\n"


def test_mistakes_are_told(file: Path) -> None:
    result = _autosync("testbed", "exec", file, "n0", "--", "true")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: no testbed of ")
    result = _autosync("testbed", "down")
    assert (result.returncode, result.stderr) == (2, "error: which testbed? (either CLUSTER.yaml or --all)\n")
    assert _autosync("testbed", "down", file, "--all").returncode == 2
