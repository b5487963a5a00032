"""What a search begins with."""

from dataclasses import replace

from autosync.search.ground_builder import NUM_PAIRS, build_ground
from autosync.search.prepared_trial import TrialPreparer
from autosync.search.proposers.interface import Ground
from autosync.search.stage_memory import stage_rank_bytes
from autosync.search.study_folder import StudySettings
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Space

MODEL, CLUSTER = load_model("ncf_small@x50"), load_cluster("6-hosts-3-racks")


def test_the_pairs_that_are_predicted_to_be_fastest_join_the_divisions_of_the_partitioner() -> None:
    ground = ground_on(CLUSTER)
    pairs, divided = pairs_of(ground), divided_of(ground)
    joined = divided[-NUM_PAIRS:]
    assert [one in pairs for one in joined] == [True] * NUM_PAIRS
    times = [one.seconds for one in ground.simulator.predict(pairs)]
    assert [one.seconds for one in ground.simulator.predict(joined)] == sorted(times)[:NUM_PAIRS]
    # One rank computes nearly all of this model, whose tables are large. The partitioner takes that for slow.
    others = ground.simulator.predict(divided[:-NUM_PAIRS])
    assert min(times) < 0.7 * min(one.seconds for one in others)


def test_a_pair_that_does_not_fit_into_memory_leaves_its_place_to_the_next() -> None:
    fastest = divided_of(ground_on(CLUSTER))[-NUM_PAIRS]
    need = max(stage_rank_bytes(TrialPreparer(MODEL, CLUSTER).plan(fastest), MODEL))
    short = replace(CLUSTER, nodes=tuple(replace(one, memory_bytes=int(need)) for one in CLUSTER.nodes))
    ground = ground_on(short)
    joined = divided_of(ground)[-NUM_PAIRS:]
    assert fastest not in joined
    assert [one in pairs_of(ground) for one in joined] == [True] * NUM_PAIRS


def ground_on(cluster: ClusterSpec) -> Ground:
    settings = StudySettings(name="s", task=MODEL.name, cluster=cluster.name, simulator="timeline")
    return build_ground(settings, TrialPreparer(MODEL, cluster))


def pairs_of(ground: Ground) -> list[Strategy]:
    stages = Space(model=MODEL, cluster=ground.cluster, limits=ground.limits).stages
    assert stages is not None
    return list(stages.pairs)


def divided_of(ground: Ground) -> list[Strategy]:
    return [one.strategy for one in ground.divided if one.strategy is not None]
