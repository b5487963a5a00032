"""The contestants of `convergence.py`: stock DDP's buckets, each codec, late updates and rare averages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from autosync.plan.bundling import bundled
from autosync.plan.lowering import lower
from autosync.plan.traffic import amortised_traffic
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.bundle import Bundle
from autosync.strategy.codecs import Cast, Codec, Int8, PowerSGD, Sign, TopK
from autosync.strategy.presets import build_preset
from autosync.strategy.presets.common import in_ready_order
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic

EXACT = "exact"
TORCHS = "torch's own PowerSGD, rank 4"
Kind = Literal["exact", "codec", "codec without error feedback", "late", "torch's own"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A way to train. `build` makes its strategy; None for stock DDP with a communication hook of torch.

    `bound` is the largest allowed ratio of its final loss to the exact run's, if there is a promised one. With
    `corrects_momentum`, workers send their own velocities, and the optimizer has no momentum (SGD only).
    """

    name: str
    kind: Kind
    build: Callable[[ModelSpec, ClusterSpec], Strategy] | None
    bound: float | None = None
    corrects_momentum: bool = False


def applies(contestant: Contestant, model: ModelSpec, cluster: ClusterSpec) -> bool:
    """Return whether the strategy is legal for the training. For example, late updates cannot be clipped."""
    bundle = bundle_of(contestant, model, cluster, momentum=0.5)
    return bundle is None or not legality.problems(bundle.strategy, model, cluster)


def bundle_of(
    contestant: Contestant, model: ModelSpec, cluster: ClusterSpec, *, momentum: float = 0.0
) -> Bundle | None:
    """Return a contestant's strategy as a bundle. `momentum` is for a contestant that corrects it."""
    if contestant.build is None:
        return None
    strategy = contestant.build(model, cluster)
    if contestant.corrects_momentum:
        strategy = _matrices(TopK(momentum=momentum))(model, cluster)
    return bundled(strategy, model, cluster)


def bytes_a_step(bundle: Bundle) -> float:
    """Return the bytes that leave the busiest node in an average step."""
    plan = lower(bundle.strategy, bundle.model, bundle.cluster)
    return float(amortised_traffic(plan, bundle.cluster).node_out.max())


def _names(model: ModelSpec, *, are_matrices: bool) -> tuple[str, ...]:
    return tuple(one.name for one in in_ready_order(model.variables) if (len(one.shape) > 1) == are_matrices)


def _everything(codec: Codec) -> Callable[[ModelSpec, ClusterSpec], Strategy]:
    """Return a builder of strategies with all gradients through a codec."""
    return lambda model, _: Strategy(
        messages=tuple(
            Message(parts=names, codec=codec)
            for names in (_names(model, are_matrices=True), _names(model, are_matrices=False))
        )
    )


def _matrices(codec: Codec) -> Callable[[ModelSpec, ClusterSpec], Strategy]:
    """Return a builder of strategies with matrices and kernels through a codec, and vectors unencoded.

    The original programs of PowerSGD and DGC do the same.
    """
    return lambda model, _: Strategy(
        messages=(
            Message(parts=_names(model, are_matrices=True), codec=codec),
            Message(parts=_names(model, are_matrices=False)),
        )
    )


def _stale(staleness: int) -> Callable[[ModelSpec, ClusterSpec], Strategy]:
    """Return a builder of strategies with two servers, each for half of the variables, whose answers come late."""

    def build(model: ModelSpec, cluster: ClusterSpec) -> Strategy:
        names = [one.name for one in in_ready_order(model.variables)]
        halves: Sequence[Sequence[str]] = (names[::2], names[1::2])
        return Strategy(
            messages=tuple(
                Message(parts=tuple(half), synchroniser=ParameterServer(server=node.name, staleness=staleness))
                for half, node in zip(halves, cluster.nodes, strict=False)
            )
        )

    return build


def _averages(every: int, outer: OuterOptimizer | None = None) -> Callable[[ModelSpec, ClusterSpec], Strategy]:
    """Return a builder of strategies in which each worker trains for itself and parameters are averaged at times."""
    return lambda model, _: Strategy(
        messages=(
            Message(
                parts=tuple(one.name for one in in_ready_order(model.variables)),
                synchroniser=Periodic(every=every, outer=outer),
            ),
        )
    )


_BARE: Kind = "codec without error feedback"

CONTESTANTS = (
    Contestant(name=EXACT, kind="exact", build=lambda model, cluster: build_preset("ddp", model, cluster)),
    Contestant(name="bf16", kind="codec", build=_everything(Cast()), bound=1.02),
    Contestant(name="fp16", kind="codec", build=_everything(Cast(dtype="float16"))),
    Contestant(name="int8", kind="codec", build=_everything(Int8())),
    Contestant(name="PowerSGD, rank 4", kind="codec", build=_matrices(PowerSGD()), bound=1.02),
    Contestant(name="top-k 1 %", kind="codec", build=_matrices(TopK()), bound=1.02),
    Contestant(
        name="top-k 1 %, momentum corrected", kind="codec", build=_matrices(TopK()), bound=1.02, corrects_momentum=True
    ),
    Contestant(name="sign", kind="codec", build=_matrices(Sign())),
    Contestant(name="PowerSGD, rank 4, no feedback", kind=_BARE, build=_matrices(PowerSGD(error_feedback=False))),
    Contestant(name="top-k 1 %, no feedback", kind=_BARE, build=_matrices(TopK(error_feedback=False))),
    Contestant(name="sign, no feedback", kind=_BARE, build=_matrices(Sign(error_feedback=False))),
    Contestant(name="SSP, 3 steps late", kind="late", build=_stale(3)),
    Contestant(name="local SGD, every 4", kind="late", build=_averages(4)),
    Contestant(name="local SGD, every 8", kind="late", build=_averages(8)),
    Contestant(name="DiLoCo, every 20", kind="late", build=_averages(20, OuterOptimizer())),
    Contestant(name=TORCHS, kind="torch's own", build=None),
)
