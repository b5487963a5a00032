"""Plans in words: whole listings written out, and that any plan can be told."""

import random

from hypothesis import given
from hypothesis import strategies as st

from autosync.plan.describe import describe_plan
from autosync.plan.lowering import lower
from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.specs.model import ModelSpec, OptimizerSpec, Timeline, Variable
from autosync.strategy.representation import Message, Overlap, Strategy
from autosync.strategy.space import Limits, Space
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.base import Synchroniser
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from tests.helpers.random_specs import clusters, models


def cluster_of(*devices: int, rack: str | None = None) -> ClusterSpec:
    """Nodes n0, n1 … with so many ranks each; 0 stands for a server-only node. The first may be in a rack."""
    nodes = tuple(
        Node(
            name=f"n{index}",
            host=f"n{index}",
            role="worker" if count else "server",
            devices=count,
            bandwidth_out=1e8,
            bandwidth_in=1e8,
            rack=None if index else rack,
        )
        for index, count in enumerate(devices)
    )
    racks = (Rack(name=rack, uplink_out=1e8, uplink_in=1e8),) if rack else ()
    return ClusterSpec(name="test", nodes=nodes, racks=racks)


def model_of(num_variables: int) -> ModelSpec:
    return ModelSpec(
        name="test",
        optimizer=OptimizerSpec(name="SGD", sparse=True),
        variables=tuple(
            Variable(name=f"v{i}", shape=(1000,), use=i, ready=num_variables - 1 - i) for i in range(num_variables)
        ),
        timeline=Timeline(device="none", source="computed", forward=(), backward=()),
    )


def told(*messages: Message, cluster: ClusterSpec, overlap: Overlap = "backward", limit: int | None = 40) -> str:
    num_variables = sum(len(message.parts) for message in messages)
    strategy = Strategy(messages=messages, overlap=overlap)
    return describe_plan(lower(strategy, model_of(num_variables), cluster), cluster, limit=limit)


def one_each(*synchronisers: Synchroniser) -> tuple[Message, ...]:
    return tuple(Message(parts=(f"v{i}",), synchroniser=one) for i, one in enumerate(synchronisers))


def test_all_reduce_in_full() -> None:
    message = Message(parts=("v0", "v1"), slice_bytes=2400)
    assert told(message, cluster=cluster_of(1, 1, 1)) == (
        "plan: 1 message, 3 stages, 9 operations, 4 transfers among them, 1 lane\n"
        "\n"
        "stage  what               who          bytes             lane  priority  after\n"
        "message 0: v1, v0\n"
        "0.1    all_reduce native  all workers  8 kB in 4 slices  0     0         the gradients of v1, v0\n"
        "0.2    average            all workers                                    0.1\n"
        "0.3    update SGD         all workers                                    0.2, step()\n"
        "\n"
        "gates:\n"
        "  backward returns after 0.2\n"
        "  step() returns after 0.3\n"
        "\n"
        "a step moves\n"
        "node       out        in  within\n"
        "n0    10.66 kB  10.67 kB     0 B\n"
        "n1    10.67 kB  10.66 kB     0 B\n"
        "n2    10.67 kB  10.67 kB     0 B"
    )


def test_servers_with_forward_overlap_in_full() -> None:
    messages = one_each(ParameterServer(server="n2", local_proxy=True), ParameterServer(server="n0", update="worker"))
    assert told(*messages, cluster=cluster_of(2, 2, 0), overlap="forward") == (
        "plan: 2 messages, 10 stages, 10 operations, 6 transfers among them, 1 lane\n"
        "\n"
        "stage  what            who                          bytes  lane  priority  after\n"
        "message 0: v1\n"
        "0.1    reduce star     all other workers to n0:0    4 kB   0     0         the gradient of v1\n"
        "0.2    average         n0:0                                                0.1\n"
        "0.3    broadcast star  n0:0 to all other workers    4 kB   0     0         0.1, 0.2\n"
        "0.4    update SGD      all workers                                         0.2, 0.3, step()\n"
        "message 1: v0\n"
        "1.1    reduce star     within nodes                 4 kB   0     0         the gradient of v0\n"
        "1.2    reduce star     one rank of each node to n2  4 kB   0     0         the gradient of v0; 1.1\n"
        "1.3    average         n2                                                  1.1, 1.2\n"
        "1.4    update SGD      n2                                                  1.3, step()\n"
        "1.5    broadcast star  n2 to one rank of each node  4 kB   0     0         1.4, step()\n"
        "1.6    broadcast star  within nodes                 4 kB   0     0         1.4, step(), 1.5\n"
        "\n"
        "gates:\n"
        "  v0 is used after 1.4 of the last step, 1.5 of the last step, 1.6 of the last step\n"
        "  v1 is used after 0.4 of the last step\n"
        "\n"
        "a step moves\n"
        "node    out     in  within\n"
        "n0    12 kB  12 kB   16 kB\n"
        "n1    12 kB  12 kB    8 kB\n"
        "n2     8 kB   8 kB     0 B"
    )


def test_staleness_and_periods_and_racks_in_words() -> None:
    text = told(
        *one_each(
            ParameterServer(server="n1", staleness=2), Periodic(every=4, outer=OuterOptimizer(), topology="tree")
        ),
        cluster=cluster_of(1, 1, 1, rack="east"),
    )
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "0.2 all_reduce tree all workers 4 kB 0 0 every 4 steps 0.1" in lines
    assert "0.4 outer all workers every 4 steps 0.3" in lines
    assert "1.3 update SGD n1 1.2, step(), 1.4 of the last step" in lines
    assert "1.6 take all workers 1.4 2 steps ago, 1.5 2 steps ago, step()" in lines
    # n0 leads the tree of three, and a fourth of that average counts: two exchanges, beside one with the server.
    assert "n0 6 kB 6 kB 0 B" in lines
    assert "east 6 kB 6 kB" in lines


def test_hierarchical_groups_in_words() -> None:
    text = told(*one_each(AllReduce(hierarchical=True)), cluster=cluster_of(2, 2))
    assert "between nodes, each rank with its like (its share)" in text
    assert "within nodes" in text
    text = told(*one_each(AllReduce(hierarchical=True)), cluster=cluster_of(1, 3, 2))
    assert "one rank of each node" in text


def test_the_limit_leaves_out_whole_messages_and_says_so() -> None:
    messages = one_each(*[AllReduce()] * 9)
    text = told(*messages, cluster=cluster_of(1, 1), limit=7, overlap="forward")
    assert "message 1: v7" in text
    assert "message 2" not in text
    assert "and 7 more messages" in text
    assert "and 2 more" in text.splitlines()
    everything = told(*messages, cluster=cluster_of(1, 1), limit=None, overlap="forward")
    assert "message 8: v0" in everything
    assert " more" not in everything


@given(models(), clusters(max_workers=8), st.integers(0, 2**32 - 1))
def test_any_plan_can_be_told(model: ModelSpec, cluster: ClusterSpec, seed: int) -> None:
    space = Space(model=model, cluster=cluster, limits=Limits(allow=("lossy", "stale")))
    plan = lower(space.sample(random.Random(seed)), model, cluster)
    text = describe_plan(plan, cluster, limit=None)
    for index in range(len(plan.messages)):
        assert f"\nmessage {index}: " in text
        assert f"\n{index}." in text
    for node in cluster.nodes:
        assert f"\n{node.name} " in text
