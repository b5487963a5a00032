"""Strategies say how long their passes and sends take, and plans order passes by it."""

from dataclasses import replace

from autosync.plan.lowering import lower
from autosync.simulators.shared.costs import usual_costs
from autosync.simulators.stages.stage_player import play_stages
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.dividing.timed import timed
from autosync.strategy.stages import ModelStage
from tests.helpers.probed_clusters import with_probed_rates
from tests.helpers.staged_models import chain, nodes

STAGES = [ModelStage(before=0, ranks=(0,)), ModelStage(before=1, ranks=(1,)), ModelStage(before=3, ranks=(0,))]


def _uneven() -> ModelSpec:
    """A chain whose first layer takes almost nothing."""
    return chain(4, batch_size=8, seconds=[0.001, 1.0, 1.0, 2.0], sizes=[10, 10, 10])


def _fast(cluster: ClusterSpec, rate: float = 1e12) -> ClusterSpec:
    return replace(cluster, nodes=tuple(replace(node, bandwidth_out=rate, bandwidth_in=rate) for node in cluster.nodes))


def test_units_are_those_of_the_profile() -> None:
    model, cluster = _uneven(), _fast(nodes(1, 1))
    found = timed(divided_strategy(model, STAGES, 8), model, cluster)
    assert legality.problems(found, model, cluster) == []
    assert [stage.units for stage in found.stages] == [(0, 0, 0), (50, 100, 0), (50, 100, 0)]
    assert found.send_units == 0
    # Two examples in a microbatch, ten activations of four bytes each: a forward pass takes half a second.
    slow = timed(divided_strategy(model, STAGES, 8), model, _fast(cluster, 160.0))
    assert slow.send_units == 50
    # A probe found that rate where the file claims more.
    assert timed(found, model, with_probed_rates(cluster, rate_out=160.0, rate_in=160.0)).send_units == 50
    slower = replace(cluster, nodes=(cluster.nodes[0], replace(cluster.nodes[1], compute=0.5)))
    assert [stage.units for stage in timed(found, model, slower).stages][1:] == [(50, 100, 0), (25, 50, 0)]


def test_times_that_are_unknown_are_not_told() -> None:
    model, cluster = chain(4, seconds=[0.0] * 4), nodes(1, 1)
    strategy = divided_strategy(model, STAGES, 4)
    assert timed(strategy, model, cluster) == strategy
    interleaved = divided_strategy(chain(4), [*STAGES, ModelStage(before=3, ranks=(1,))], 4, "interleaved")
    assert timed(interleaved, chain(4), cluster) == interleaved


def test_a_short_stage_on_a_rank_with_another_one_holds_nothing_up() -> None:
    model, cluster = _uneven(), _fast(nodes(1, 1))
    untold = divided_strategy(model, STAGES, 16, slack=4)
    seconds = {
        name: play_stages(lower(one, model, cluster), model, cluster, usual_costs(cluster)).seconds
        for name, one in (("untold", untold), ("told", timed(untold, model, cluster)))
    }
    # Each rank computes for twelve seconds.
    assert seconds["told"] < 1.2 * 12 < seconds["untold"]
