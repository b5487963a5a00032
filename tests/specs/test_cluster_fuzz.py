"""Cluster files as no user means to write them: each is a cluster, or mistakes with file and line."""

import random
from pathlib import Path

import pytest

from autosync.errors import DocumentError
from autosync.specs.cluster import describe
from autosync.specs.cluster_file import load_cluster, shipped_clusters
from tests.helpers.mutations import mutations

_EVERYTHING = """\
schema: autosync.cluster/1
name: everything
launcher: ssh
backend: gloo
racks:
  - {name: east, uplink: 10 Gbit/s}
  - {name: west, uplink_out: 5 Gbit/s, uplink_in: 10 Gbit/s}
nodes:
  - name: a
    host: 10.0.0.1
    devices: 4
    bandwidth_out: 1 Gbit/s
    bandwidth_in: 2 Gbit/s
    intra_bandwidth: 25 GB/s
    rack: east
    memory: 16 GB
  - {name: b, count: 2, hosts: [10.0.0.2, 10.0.0.3], devices: 4, bandwidth: 1 Gbit/s, rack: west}
  - {name: s, role: server, devices: 0, bandwidth: 1 Gbit/s}
  - {name: t, role: server, bandwidth: 1 Gbit/s}
alike: [[s, t]]
"""
_AUTODIST = """\
nodes:
  - address: 10.0.0.1
    cpus: [0]
    gpus: [0, 1]
    chief: true
    network_bandwidth: 25
  - address: 10.0.0.3
    cpus: [0, 1]
    ssh_config: two
ssh:
  two:
    username: other
    port: 12345
    key_file: /home/other/key.pem
    python_venv: source /home/other/venv/bin/activate
    shared_envs:
      DEBUG: 1
"""


def _try(text: str, path: Path) -> bool:
    """Whether the file is a cluster; if not, every mistake must be at a place in it."""
    raw = text.encode("utf-8", "surrogatepass")
    path.write_bytes(raw)
    try:
        cluster = load_cluster(path)
    except DocumentError as error:
        problems = error.problems
    else:
        return bool(describe(cluster))
    # The parser counts more line ends than \n.
    num_lines = len(raw.decode("utf-8", "replace").splitlines()) + 1
    assert problems
    for problem in problems:
        assert problem.file == str(path)
        assert 1 <= problem.line <= num_lines, str(problem)
        assert "\n" not in str(problem)
    return False


def _originals() -> list[str]:
    return [_EVERYTHING, _AUTODIST, *(path.read_text(encoding="utf-8") for path in shipped_clusters().values())]


def test_the_originals_are_clusters(tmp_path: Path) -> None:
    assert all(_try(text, tmp_path / "c.yaml") for text in _originals())


@pytest.mark.parametrize("num_mutants", [1000, pytest.param(5000, marks=pytest.mark.slow)])
def test_mutants_are_clusters_or_mistakes_with_a_line(tmp_path: Path, num_mutants: int) -> None:
    rng = random.Random(20261121)
    originals = _originals()
    outcomes = [_try(mutations(rng.choice(originals), rng), tmp_path / "c.yaml") for _ in range(num_mutants)]
    assert set(outcomes) == {True, False}
