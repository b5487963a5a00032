"""The preset of FSDP's traffic: blocks are reduce-scattered as they finish, and gathered before their next use."""

from __future__ import annotations

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.presets.common import in_ready_order, need_elementwise
from autosync.strategy.presets.options import count_option
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.sharded import Sharded


def fsdp(model: ModelSpec, cluster: ClusterSpec, *, min_parameters: int = 0) -> Strategy:
    """Reduce-scatter a block, its update in shards, and its parameters gathered before the next forward pass needs it.

    A block is the outermost numbered module in a variable's name (`encoder.3` in `encoder.3.output.0.weight`), if it
    has at least `min_parameters` parameters. All other variables form one unit, the root's. Variables of different
    dtypes do not share a message. Embeddings are dense. Ranks keep all parameters between steps: this is the traffic of
    FSDP with parameters kept from the forward to the backward pass (`SHARD_GRAD_OP`, `reshard_after_forward=False`),
    without its savings in memory.

    Source: Zhao et al., "PyTorch FSDP", VLDB 2023, section 3; torch 2.13, torch/distributed/fsdp/wrap.py
    (`size_based_auto_wrap_policy`: modules that are not wrapped belong to the unit above) and
    torch/distributed/fsdp/_fully_shard (`fully_shard` on each block, then on the root).
    """
    del cluster  # the same on every cluster
    need_elementwise(model, "shards are updated apart, which needs an elementwise optimizer")
    least = count_option("min_parameters", min_parameters, minimum=0)
    blocks: dict[str, list[Variable]] = {}
    for variable in in_ready_order(model.variables):
        blocks.setdefault(block_of(variable.name), []).append(variable)
    units: dict[tuple[str, str], list[str]] = {}
    for block, variables in blocks.items():
        unit = block if sum(variable.num_elements for variable in variables) >= least else ""
        for variable in variables:
            units.setdefault((unit, variable.dtype), []).append(variable.name)
    messages = tuple(Message(parts=tuple(names), synchroniser=Sharded()) for names in units.values())
    return Strategy(overlap="forward", messages=messages)


def block_of(name: str) -> str:
    """Return the outermost numbered module that a variable is in; empty if it is in none."""
    modules = name.split(".")[:-1]
    numbered = next((depth for depth, module in enumerate(modules, 1) if module.isdecimal()), 0)
    return ".".join(modules[:numbered])
