"""The presets whose parameters miss updates: servers with bounded staleness, and averages every few steps."""

from __future__ import annotations

from dataclasses import replace

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.presets.common import in_ready_order, need_elementwise
from autosync.strategy.presets.options import count_option, number_option
from autosync.strategy.presets.parameter_server import ps_load_balanced
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic


def ssp(model: ModelSpec, cluster: ClusterSpec, *, staleness: int = 1) -> Strategy:
    """Stale: parameter servers whose answers may be some steps late (Stale Synchronous Parallel).

    Variables are placed as in `ps_load_balanced`. SSP lets a worker read any parameters that miss no update older than
    `staleness` steps and that include its own updates. Here they miss exactly the last `staleness` updates of all
    workers, so that every run gives the same result. With a staleness of 1, transfers already have a whole step's time.

    Source: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013,
    section 2; AutoDist's `PS(staleness=...)` (autodist/strategy/ps_strategy.py).
    """
    need_elementwise(model, "a stale server holds the parameters and updates them, part by part")
    if model.clip_norm is not None or model.loss_scaling:
        rule = "clipping and loss scaling need every gradient of a step before its first update"
        raise DoesNotApplyError(f"{model.name} clips its gradients or scales its loss", rule=rule)
    steps = count_option("staleness", staleness)
    synchronous = ps_load_balanced(model, cluster)
    return replace(synchronous, messages=tuple(_late(message, steps) for message in synchronous.messages))


def local_sgd(model: ModelSpec, cluster: ClusterSpec, *, every: int = 4) -> Strategy:
    """Stale: each worker trains for itself, and every 4 steps their parameters are averaged (local SGD).

    There is one all-reduce of all parameters of each dtype. Each worker keeps its own optimizer state. Post-local SGD
    first trains synchronously (`warmup_steps` in torch); a strategy is the same in all steps, so train these steps with
    another one. The preset does not all-reduce gradients within nodes between averages.

    Source: torch 2.13, `PeriodicModelAverager` in torch/distributed/algorithms/model_averaging/averagers.py (the
    period of its example) and `average_parameters` in utils.py beside it; Stich, "Local SGD Converges Fast and
    Communicates Little", ICLR 2019; Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020.
    """
    del cluster  # the same on every cluster
    return Strategy(messages=_averaged(model, Periodic(every=count_option("every", every, minimum=2))))


def diloco(
    model: ModelSpec,
    cluster: ClusterSpec,
    *,
    every: int = 500,
    outer_learning_rate: float = 0.7,
    outer_momentum: float = 0.9,
) -> Strategy:
    """Stale: as local_sgd every 500 steps, with an outer step of Nesterov momentum on the average (DiLoCo).

    The inner optimizer is the task's (AdamW in the paper); each worker keeps its own state.

    Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023, Algorithm 1;
    500 steps, the outer learning rate and the outer momentum are those of its experiments.
    """
    del cluster  # the same on every cluster
    outer = OuterOptimizer(
        learning_rate=number_option(
            "outer_learning_rate", outer_learning_rate, rule="a number above 0", holds=lambda one: one > 0
        ),
        momentum=number_option(
            "outer_momentum", outer_momentum, rule="a number of 0 or more below 1", holds=lambda one: 0 <= one < 1
        ),
    )
    return Strategy(messages=_averaged(model, Periodic(every=count_option("every", every), outer=outer)))


def _late(message: Message, steps: int) -> Message:
    assert isinstance(message.synchroniser, ParameterServer), "everything is on servers"
    return replace(message, synchroniser=replace(message.synchroniser, staleness=steps))


def _averaged(model: ModelSpec, periodic: Periodic) -> tuple[Message, ...]:
    """Return one message for all parameters of each dtype."""
    if model.loss_scaling:
        rule = "a worker whose own gradients overflow would leave out the step alone"
        raise DoesNotApplyError(f"{model.name} scales its loss", rule=rule)
    names: dict[str, list[str]] = {}
    for variable in in_ready_order(model.variables):
        names.setdefault(variable.dtype, []).append(variable.name)
    return tuple(Message(parts=tuple(parts), synchroniser=periodic) for parts in names.values())
