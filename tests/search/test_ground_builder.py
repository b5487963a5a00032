"""What a search begins with."""

from autosync.search.ground_builder import NUM_PAIRS, build_ground
from autosync.search.prepared_trial import TrialPreparer
from autosync.search.study_folder import StudySettings
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model
from autosync.strategy.space import Space

MODEL, CLUSTER = load_model("ncf_small@x50"), load_cluster("6-hosts-3-racks")


def test_the_pairs_that_are_predicted_to_be_fastest_join_the_divisions_of_the_partitioner() -> None:
    settings = StudySettings(name="s", task=MODEL.name, cluster=CLUSTER.name, simulator="timeline")
    ground = build_ground(settings, TrialPreparer(MODEL, CLUSTER))
    stages = Space(model=MODEL, cluster=CLUSTER, limits=ground.limits).stages
    assert stages is not None
    divided = [one.strategy for one in ground.divided if one.strategy is not None]
    joined = divided[-NUM_PAIRS:]
    assert [one in stages.pairs for one in joined] == [True] * NUM_PAIRS
    times = [one.seconds for one in ground.simulator.predict(stages.pairs)]
    assert [one.seconds for one in ground.simulator.predict(joined)] == sorted(times)[:NUM_PAIRS]
    # One rank computes nearly all of this model, whose tables are large. The partitioner takes that for slow.
    others = ground.simulator.predict(divided[:-NUM_PAIRS])
    assert min(times) < 0.7 * min(one.seconds for one in others)
