"""AutoDist's resource_spec.yml: what it means as a cluster, and the mistakes AutoDist would refuse."""

from pathlib import Path

import pytest

from autosync import documents
from autosync.errors import DocumentError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import dump_cluster, load_cluster, parse_cluster

GIGABIT = 1e9 / 8

FULL = """\
nodes:
  - address: 10.0.0.1
    cpus: [0]
    gpus: [0, 1, 2, 3]
    chief: true
    network_bandwidth: 25
  - address: 10.0.0.2
    gpus: [0, 1]
    ssh_config: one
    network_bandwidth: 12.5
  - address: 10.0.0.3
    cpus: [0, 1]
    ssh_config: two
ssh:
  one:
    key_file: /home/ubuntu/.ssh/key.pem
    username: ubuntu
    python_venv: source /home/ubuntu/venv/bin/activate
  two:
    username: other
    port: 12345
    shared_envs:
      LD_LIBRARY_PATH: /usr/local/cuda/lib64
      DEBUG: 1
"""


def _parse(text: str) -> ClusterSpec:
    return parse_cluster(documents.parse_document(text, file="resource_spec.yml"))


def _mistakes(text: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        _parse(text)
    return str(caught.value).splitlines()


def test_gpus_are_ranks_and_nodes_without_them_serve(tmp_path: Path) -> None:
    path = tmp_path / "resource_spec.yml"
    path.write_text(FULL, encoding="utf-8")
    cluster = load_cluster(path)
    assert (cluster.name, cluster.launcher, cluster.backend) == ("resource_spec", "ssh", "gloo")
    assert [(n.name, n.host, n.role, n.devices, n.bandwidth_out / GIGABIT) for n in cluster.nodes] == [
        ("10.0.0.1", "10.0.0.1", "worker", 4, 25),
        ("10.0.0.2", "10.0.0.2", "worker", 2, 12.5),
        ("10.0.0.3", "10.0.0.3", "server", 0, 1),
    ]
    assert [node.bandwidth_in for node in cluster.nodes] == [node.bandwidth_out for node in cluster.nodes]
    assert cluster.alike == ()


def test_the_smallest_file() -> None:
    cluster = _parse("nodes:\n  - address: localhost\n    gpus: [0, 1]\n")
    assert (cluster.launcher, cluster.backend, cluster.num_workers) == ("local", "nccl", 2)


def test_without_gpus_every_node_is_a_worker_with_one_rank() -> None:
    cluster = _parse("nodes:\n- {address: a, cpus: [0, 1], chief: true}\n- {address: b, ssh_config: c}\nssh: {c: {}}\n")
    assert [(node.role, node.devices) for node in cluster.nodes] == [("worker", 1), ("worker", 1)]
    assert cluster.backend == "gloo"


def test_it_converts_to_a_cluster_file() -> None:
    cluster = _parse(FULL)
    text = documents.format_yaml(dump_cluster(cluster))
    assert parse_cluster(documents.parse_document(text, file="other.yaml")) == cluster


def test_addresses_may_be_ipv6() -> None:
    assert _parse("nodes: [{address: 'fe80::1', gpus: [0]}]").nodes[0].host == "fe80::1"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "    chief: true\n",
            "",
            (
                "resource_spec.yml:2: nodes[0].ssh_config: is missing"
                " (every node but the chief names an entry of the ssh section)"
            ),
        ),
        (
            "ssh_config: two",
            "ssh_config: twoo",
            (
                "resource_spec.yml:13: nodes[2].ssh_config: unknown ssh config 'twoo' (known: one, two);"
                " did you mean 'two'?"
            ),
        ),
        (
            "    ssh_config: two\n",
            "",
            (
                "resource_spec.yml:11: nodes[2].ssh_config: is missing"
                " (every node but the chief names an entry of the ssh section)"
            ),
        ),
        (
            "    cpus: [0, 1]",
            "    chief: true",
            "resource_spec.yml:12: nodes[2].chief: a second chief (exactly one node is the chief, and 10.0.0.1 is)",
        ),
        (
            "10.0.0.2",
            "127.0.0.1",
            (
                "resource_spec.yml:7: nodes[1].address: '127.0.0.1' is a loopback address"
                " (with several nodes each is known to the others by its address)"
            ),
        ),
        (
            "10.0.0.2",
            "10.0.0.1",
            "resource_spec.yml:7: nodes[1].address: '10.0.0.1' is taken (each node has a name of its own)",
        ),
        (
            "gpus: [0, 1]",
            "gpus: [0, 0]",
            (
                "resource_spec.yml:8: nodes[1].gpus[1]: 0 is given twice"
                " (indexes of devices are 0 or more, each given once)"
            ),
        ),
        (
            "gpus: [0, 1]",
            "gpus: [-1]",
            "resource_spec.yml:8: nodes[1].gpus[0]: -1 is no index (indexes of devices are 0 or more, each given once)",
        ),
        (
            "network_bandwidth: 25",
            "network_bandwidth: 0",
            (
                "resource_spec.yml:6: nodes[0].network_bandwidth: 0 Gbit/s is no bandwidth"
                " (network_bandwidth is in Gbit/s and above 0)"
            ),
        ),
        (
            "network_bandwidth: 25",
            "network_bandwith: 25",
            (
                "resource_spec.yml:6: nodes[0].network_bandwith: unknown key"
                " (known: address, gpus, cpus, chief, ssh_config, network_bandwidth); did you mean 'network_bandwidth'?"
            ),
        ),
        ("port: 12345", "port: 123456", "resource_spec.yml:21: ssh.two.port: 123456 is no port (1 to 65535)"),
    ],
)
def test_each_mistake_has_its_line(old: str, new: str, message: str) -> None:
    assert FULL.count(old) == 1
    assert message in _mistakes(FULL.replace(old, new))


def test_several_nodes_need_a_chief() -> None:
    text = FULL.replace("    chief: true\n", "    ssh_config: one\n")
    assert _mistakes(text) == [
        (
            "resource_spec.yml:1: nodes: no node is the chief"
            " (exactly one node has chief: true, the one that the program is started on)"
        )
    ]


def test_a_file_with_a_schema_is_ours() -> None:
    with pytest.raises(DocumentError, match=r"nodes\[0\].address: unknown key"):
        _parse("schema: autosync.cluster/1\nnodes: [{address: a, name: a, bandwidth: 1 Gbit/s}]")
