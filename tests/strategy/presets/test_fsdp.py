"""Blocks of FSDP, on names as models have them."""

from collections.abc import Callable
from typing import Any

import pytest

from autosync.errors import DoesNotApplyError
from autosync.plan.lowering import lower
from autosync.plan.traffic import plan_traffic
from autosync.plan.types import Transfer
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset
from autosync.strategy.presets.fsdp import block_of
from autosync.strategy.representation import Message
from autosync.strategy.synchronisers.sharded import Sharded

Models = Callable[..., ModelSpec]
Clusters = Callable[..., ClusterSpec]
Variables = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("encoder.3.attention.query.weight", "encoder.3"),
        ("encoder.3.output.0.weight", "encoder.3"),
        ("features.denseblock1.conv.weight", ""),
        ("layer1.0.conv1.weight", "layer1.0"),
        ("0.weight", "0"),
        ("weight", ""),
        ("words.weight", ""),
        ("parameters.7", ""),
    ],
)
def test_the_outermost_numbered_module_is_the_block(name: str, block: str) -> None:
    assert block_of(name) == block


def test_a_message_a_block_and_one_for_the_root(
    model: Models, variable: Variables, cluster: Clusters, optimizers: dict[str, Any]
) -> None:
    spec = model(
        variable("words.weight", 9, 4, kind="embedding", touched_rows=2.0, max_touched_rows=3),
        variable("blocks.0.a.weight", 4, 4),
        variable("blocks.0.a.bias", 4, dtype="float16"),
        variable("blocks.0.b.1.weight", 4),
        variable("blocks.1.a.weight", 4, 4),
        variable("head.weight", 4, 4),
    )
    strategy = build_preset("fsdp", spec, cluster([1, 1]))
    assert strategy.overlap == "forward"
    assert strategy.messages == (
        Message(parts=("head.weight", "words.weight"), synchroniser=Sharded()),
        Message(parts=("blocks.1.a.weight",), synchroniser=Sharded()),
        Message(parts=("blocks.0.b.1.weight", "blocks.0.a.weight"), synchroniser=Sharded()),
        Message(parts=("blocks.0.a.bias",), synchroniser=Sharded()),
    )
    # Block 0 has 24 parameters, block 1 has 16: it is the root's.
    larger = build_preset("fsdp", spec, cluster([1, 1]), min_parameters=24)
    assert [message.parts for message in larger.messages] == [
        ("head.weight", "words.weight", "blocks.1.a.weight"),
        ("blocks.0.b.1.weight", "blocks.0.a.weight"),
        ("blocks.0.a.bias",),
    ]
    with pytest.raises(DoesNotApplyError, match="LAMB is no elementwise optimizer"):
        build_preset("fsdp", model(variable("a", 4), optimizer=optimizers["lamb"]), cluster([1, 1]))


def test_blocks_come_home_in_the_order_of_use_as_many_bytes_as_an_all_reduce() -> None:
    model, cluster = load_model("gpt2_small"), load_cluster("4-hosts")
    strategy = build_preset("fsdp", model, cluster)
    plan = lower(strategy, model, cluster)
    transfers = [operation for operation in plan.operations if isinstance(operation, Transfer)]
    parts = {part.name.variable: part.variable.use for part in plan.parts}
    gathered = [
        min(parts[name] for name in plan.messages[transfer.message])
        for transfer in transfers
        if transfer.collective == "all_gather"
    ]
    assert len(strategy.messages) == len(gathered) == 12 + 1
    assert gathered == sorted(gathered)
    reduced = lower(build_preset("ddp", model, cluster), model, cluster)
    most, least = plan_traffic(plan, cluster).node_out.max(), plan_traffic(reduced, cluster).node_out.max()
    assert most == pytest.approx(least, rel=0.01)
