"""Whatever is killed, and whenever: the next `down` leaves nothing."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import save_cluster
from autosync.testbed import live, namespace_holder
from autosync.testbed.layout import cluster_key
from autosync.testbed.requirements import find_folders

# Says when it begins, so that the moments hit the work and not Python's start.
RUN = """
import sys
from autosync.specs.cluster_file import load_cluster
from autosync.testbed import live
cluster = load_cluster(sys.argv[2])
print("go", flush=True)
try:
    if sys.argv[1] == "up":
        live.up(cluster, keep=True)
    else:
        live.down(cluster)
except KeyboardInterrupt:
    sys.exit(130)
"""


def _begin(what: str, cluster: ClusterSpec, folder: Path) -> subprocess.Popen[str]:
    path = folder / f"{cluster.name}.yaml"
    save_cluster(path, cluster)
    process = subprocess.Popen([sys.executable, "-c", RUN, what, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    return process


def _assert_nothing_left(cluster: ClusterSpec) -> None:
    folders, key = find_folders(), cluster_key(cluster)
    assert folders.existing(key) == ()
    assert key not in folders.recorded()
    assert key not in namespace_holder.keys(folders)


@pytest.mark.parametrize("what", ["up", "down"])
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_a_random_moment(
    what: str, seed: int, make_cluster: Callable[..., ClusterSpec], tmp_path: Path
) -> None:
    cluster = make_cluster(*[100] * 6)
    if what == "down":
        live.up(cluster, keep=True)
    process = _begin(what, cluster, tmp_path)
    time.sleep(random.Random(f"{what}{seed}").uniform(0, 0.15 if what == "up" else 0.05))
    process.kill()
    process.communicate()
    live.down(cluster)
    _assert_nothing_left(cluster)


def test_up_after_a_killed_up_is_whole(make_cluster: Callable[..., ClusterSpec], tmp_path: Path) -> None:
    cluster = make_cluster(*[100] * 6)
    process = _begin("up", cluster, tmp_path)
    key, folders = cluster_key(cluster), find_folders()
    deadline = time.monotonic() + 20
    while not folders.existing(key) and process.poll() is None and time.monotonic() < deadline:
        pass
    process.kill()
    process.communicate()
    live.up(cluster, keep=True)
    assert live.find(cluster).faults() == ()


def test_an_interrupted_up_leaves_nothing(make_cluster: Callable[..., ClusterSpec], tmp_path: Path) -> None:
    cluster = make_cluster(*[100] * 40)
    process = _begin("up", cluster, tmp_path)
    key, folders = cluster_key(cluster), find_folders()
    deadline = time.monotonic() + 20
    while len(folders.existing(key)) < 2 and process.poll() is None and time.monotonic() < deadline:
        pass
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    _assert_nothing_left(cluster)
