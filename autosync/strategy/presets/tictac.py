"""The preset of TicTac: servers send parameters in the order in which the forward pass uses them."""

from __future__ import annotations

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.backends import BACKENDS
from autosync.strategy.parts import parts_of
from autosync.strategy.presets.common import ServerNodes, need_elementwise
from autosync.strategy.presets.options import count_option
from autosync.strategy.representation import Strategy

NUM_LANES = 16


def tictac(model: ModelSpec, cluster: ClusterSpec, *, num_lanes: int = NUM_LANES) -> Strategy:
    """Each variable on one server; parameters come back in the order of TIC and TAC, which is that of their next use.

    TicTac orders the parameters that servers send to workers, for each channel; gradients are sent as soon as they are
    ready. TIC ranks a parameter by the smallest number of parameters that a computation waits for which needs it and
    one more parameter. TAC compares two parameters at a time: the compute that each allows to start, and the time that
    the other takes. torch computes one module after the other, so each computation waits for all parameters before it,
    and both orders become the order of first use. (TAC leaves the order within a module open; TIC also that of the
    first two modules, if the first has one parameter.) In a plan a lane returns parameters in the order of their next
    use. So each server has a lane as its channel, as far as `num_lanes` allows, and transfers may overlap the next
    forward pass. Variables are placed as in `ps_load_balanced`. Embeddings send their rows. Needs an elementwise
    optimizer, because otherwise workers update and get gradients instead of parameters.

    Source: Hashemi, Abdu Jyothi and Campbell, "TicTac: Accelerating Distributed Deep Learning with Communication
    Scheduling", MLSys 2019; xldrx/tictac, tictac/common.py (`_update_properties`), tictac/tic.py, tictac/tac.py.
    """
    need_elementwise(model, "servers return parameters, which needs an elementwise optimizer")
    most = min(count_option("num_lanes", num_lanes), BACKENDS[cluster.backend].max_lanes)
    servers = ServerNodes(model, cluster, num_lanes=most)
    messages = (servers.message(parts_of(variable, None)[0]) for variable in model.variables)
    return Strategy(overlap="forward", messages=tuple(messages))
