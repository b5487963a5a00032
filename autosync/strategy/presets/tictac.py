"""TicTac: servers send parameters in the order in which the forward pass uses them."""

from __future__ import annotations

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.backends import BACKENDS
from autosync.strategy.parts import parts_of
from autosync.strategy.presets.common import Servers, need_elementwise
from autosync.strategy.presets.options import count_option
from autosync.strategy.representation import Strategy

NUM_LANES = 16


def tictac(model: ModelSpec, cluster: ClusterSpec, *, num_lanes: int = NUM_LANES) -> Strategy:
    """Each variable on one server; parameters come back in the order of TIC and TAC, which is that of their next use.

    TicTac orders what servers send to workers, channel by channel; what workers send has no order, and goes as it
    comes. TIC gives a parameter the smallest number of parameters that some computation that needs it (and one more)
    waits for; TAC compares, step by step, the compute that each would let start with the time that the other takes.
    torch computes module after module, so each computation waits for all parameters before it: both orders are then
    that of first use (TAC leaves the order within a module open, TIC that of the first two modules too, if the first
    has one parameter). In a plan a lane returns parameters in the order of their next use; so each server has a lane,
    which is its channel, as far as `num_lanes` go, and transfers may go on into the next forward pass. Placement as in
    `ps_load_balanced`. Embeddings send their rows. Needs an elementwise optimizer: workers that update themselves get
    gradients as they come.

    Source: Hashemi, Abdu Jyothi and Campbell, "TicTac: Accelerating Distributed Deep Learning with Communication
    Scheduling", MLSys 2019; xldrx/tictac, tictac/common.py (`_update_properties`), tictac/tic.py, tictac/tac.py.
    """
    need_elementwise(model, "servers return parameters, which needs an elementwise optimizer")
    most = min(count_option("num_lanes", num_lanes), BACKENDS[cluster.backend].max_lanes)
    servers = Servers(model, cluster, num_lanes=most)
    messages = (servers.message(parts_of(variable, None)[0]) for variable in model.variables)
    return Strategy(overlap="forward", messages=tuple(messages))
