"""Predictions of scaling, from the model and the cluster to intervals, costs and words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autosync.errors import InputError
from autosync.scaling.bottleneck import bottleneck_of
from autosync.scaling.errors import Ends
from autosync.scaling.extension import extended, with_links
from autosync.scaling.fields import fields
from autosync.scaling.intervals import effects_of, forecast
from autosync.scaling.predict import predict_scaling
from autosync.scaling.prediction import Forecast, Outlook, ScalingPrediction
from autosync.scaling.price import Price
from autosync.scaling.wording import WIDTH, describe
from autosync.search.candidates import Candidate, candidate, default_as_strategy
from autosync.simulators.interface import Simulator
from autosync.simulators.shared.costs import usual_costs
from autosync.simulators.timeline import scene_builder
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import load_cluster
from autosync.specs.costs import Costs
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.specs.profiled import Profiled
from autosync.specs.use_sample import UseSample
from autosync.strategy.presets import build_preset

SHAPES = {"conv.weight": (64, 3, 7, 7), "conv.bias": (64,), "fc.weight": (1000, 512), "fc.bias": (1000,)}


def _model(seconds: float = 0.02) -> ModelSpec:
    last = len(SHAPES) - 1
    variables = tuple(
        [
            Variable(name=name, shape=shape, use=position, ready=last - position)
            for position, (name, shape) in enumerate(SHAPES.items())
        ]
    )
    segment = Segment(module="all", seconds=seconds / 2, variables=tuple(SHAPES))
    profiled = Profiled(num_steps=20, low_seconds=0.98 * seconds, high_seconds=1.05 * seconds)
    timeline = Timeline(device="cpu", source="measured", forward=(segment,), backward=(segment,), profiled=profiled)
    optimizer = OptimizerSpec(name="SGD")
    return ModelSpec(name="tiny", batch_size=8, optimizer=optimizer, variables=variables, timeline=timeline)


def _sharded(model: ModelSpec, cluster: ClusterSpec, _simulator: Simulator, _costs: Costs, _seed: int) -> Candidate:
    """Find one preset, without a search."""
    return candidate("preset:sharded", build_preset("sharded", model, cluster), model, cluster)


@pytest.fixture(scope="module")
def found() -> ScalingPrediction:
    price = Price(per_hour=3.2, currency="USD")
    return predict_scaling(_model(), load_cluster("2-hosts"), [16, 1, 2, 4], price=price, find=_sharded)


def _outlooks(found: ScalingPrediction) -> list[Outlook]:
    return [outlook for size in found.sizes for outlook in (size.stock, size.best)]


def test_sizes_rise_and_the_best_is_no_slower_than_stock_ddp(found: ScalingPrediction) -> None:
    assert [size.num_nodes for size in found.sizes] == [1, 2, 4, 16]
    assert all(size.gain >= 1 for size in found.sizes)
    assert found.sizes[0].stock.step_seconds.value == pytest.approx(0.02)


def test_stock_ddp_is_predicted_as_the_simulator_does(found: ScalingPrediction) -> None:
    model, cluster = _model(), load_cluster("2-hosts")
    strategy = default_as_strategy(model, cluster).strategy
    assert strategy is not None
    (expected,) = TimelineSimulator(model, cluster).predict([strategy])
    assert found.sizes[1].stock.step_seconds.value == pytest.approx(expected.seconds)


def test_every_figure_lies_in_its_interval(found: ScalingPrediction) -> None:
    for outlook in _outlooks(found):
        for figure in (outlook.step_seconds, outlook.samples_per_second, outlook.efficiency, outlook.cost):
            assert figure is not None
            assert figure.low is not None
            assert figure.high is not None
            assert figure.low <= figure.value <= figure.high


def test_figures_agree_with_each_other(found: ScalingPrediction) -> None:
    for size in found.sizes:
        for outlook in (size.stock, size.best):
            seconds = outlook.step_seconds.value
            samples = size.num_ranks * 8
            assert outlook.samples_per_second.value == pytest.approx(samples / seconds)
            assert outlook.efficiency.value == pytest.approx(0.02 / seconds)
            hours = 1e6 / (samples / seconds) / 3600
            assert outlook.cost is not None
            assert outlook.cost.value == pytest.approx(3.2 * size.num_nodes * hours)
            low = outlook.samples_per_second.low
            assert low is not None
            assert low == pytest.approx(samples / (outlook.step_seconds.high or 0))


def test_a_rank_alone_has_the_interval_of_its_profile(found: ScalingPrediction) -> None:
    alone = found.sizes[0].best.step_seconds
    assert alone.low == pytest.approx(0.02 * 0.98 ** (1.645 / 1.96))
    assert alone.high == pytest.approx(0.02 * 1.05 ** (1.645 / 1.96))


def test_where_nothing_was_measured_a_warning_says_so(found: ScalingPrediction) -> None:
    words = " ".join(found.warnings)
    assert "not probed" in words
    assert "At 16 nodes, no prediction was ever compared with a measurement: more than 8 nodes." in words
    assert found.sizes[3].beyond == ("more than 8 nodes",)


def test_the_text_fits_its_width_and_names_sizes_beyond(found: ScalingPrediction) -> None:
    text = describe(found)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "  16*  " in text
    assert "Cost of a million samples in USD, at 3.2 USD a node and hour:" in text
    assert "node brings" in text or "further node" in text


def test_programs_get_the_same_figures(found: ScalingPrediction) -> None:
    told = fields(found)
    assert told["schema"] == "autosync.scaling/1"
    assert [size["nodes"] for size in told["sizes"]] == [1, 2, 4, 16]
    assert told["sizes"][1]["stock_ddp"]["step_seconds"]["value"] == found.sizes[1].stock.step_seconds.value
    assert told["price"] == {"per_hour": 3.2, "currency": "USD"}


def test_faster_links_are_no_slower() -> None:
    slow, fast = (
        predict_scaling(_model(), load_cluster("2-hosts"), [2, 4], link=rate, find=_sharded) for rate in (6.25e7, 2.5e8)
    )
    for before, after in zip(slow.sizes, fast.sizes, strict=True):
        assert after.stock.step_seconds.value <= before.stock.step_seconds.value * 1.001
        assert after.best.step_seconds.value <= before.best.step_seconds.value * 1.001
    assert any("Links of this rate were not measured" in warning for warning in slow.warnings)


def test_the_best_is_found_by_a_search_and_the_same_seed_finds_the_same() -> None:
    one, other = (predict_scaling(_model(), load_cluster("2-hosts"), [3], seed=5) for _ in range(2))
    assert fields(one) == fields(other)
    assert one.sizes[0].gain > 1.02


def test_more_ranks_are_predicted_from_one_node() -> None:
    nodes = tuple([Node(name=f"n{n}", host=f"n{n}", devices=8, bandwidth_out=1e9, bandwidth_in=1e9) for n in range(2)])
    cluster = ClusterSpec(name="big", nodes=nodes, launcher="ssh", alike=(("n0", "n1"),))
    found = predict_scaling(_model(), cluster, [2, 16], find=_sharded)
    assert [outlook.simulator for outlook in _outlooks(found)] == ["timeline"] * 4
    assert any("coarser simulator" in warning for warning in found.warnings)
    assert any("nodes that are not emulated" in warning for warning in found.warnings)


def test_what_closed_forms_predict_carries_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene_builder, "MOST_MESSAGES", 8_000)
    nodes = tuple(
        [Node(name=f"n{n}", host=f"n{n}", devices=8, bandwidth_out=r, bandwidth_in=r) for n, r in enumerate((1e9, 5e8))]
    )
    found = predict_scaling(_model(), ClusterSpec(name="unlike", nodes=nodes, launcher="ssh"), [2, 9], find=_sharded)
    assert [outlook.simulator for outlook in _outlooks(found)] == ["timeline", "timeline", "analytical", "analytical"]
    assert [size["stock_ddp"]["simulator"] for size in fields(found)["sizes"]] == ["timeline", "analytical"]


def test_a_model_without_times_is_refused_where_nothing_is_sent() -> None:
    model = replace(_model(seconds=0), timeline=replace(_model(seconds=0).timeline, profiled=None))
    with pytest.raises(InputError, match="tiny on one rank, and it has no compute times"):
        predict_scaling(model, load_cluster("2-hosts"), [1, 2], find=_sharded)
    assert predict_scaling(model, load_cluster("2-hosts"), [2], find=_sharded).sizes[0].best.step_seconds.value > 0


def test_no_size_is_refused() -> None:
    with pytest.raises(InputError, match="no number of nodes"):
        predict_scaling(_model(), load_cluster("2-hosts"), [])


def test_intervals_add_up_as_squares() -> None:
    assert forecast(1.0, None, (Ends(-1, 1),)) == Forecast(value=1.0)
    ends = forecast(1.0, Ends(-0.03, 0.04), (Ends(-0.04, 0.03),))
    assert ends.low == pytest.approx(math.exp(-0.05))
    assert ends.high == pytest.approx(math.exp(0.05))
    one_sided = forecast(2.0, Ends(0.01, 0.04), ())
    assert one_sided.low == pytest.approx(2.0)


def test_a_profile_without_an_interval_adds_nothing() -> None:
    model = _model()
    plain = replace(model, timeline=replace(model.timeline, profiled=None))
    assert effects_of(0.02, plain, None, lambda spec, _: spec.step_seconds) == ()


def test_bottlenecks() -> None:
    model, cluster = _model(), extended(load_cluster("2-hosts"), 4)
    strategy, costs = default_as_strategy(model, cluster).strategy, usual_costs(cluster)
    hidden = bottleneck_of(0.0205, strategy, model, with_links(cluster, 1e11), costs)
    assert (hidden.kind, str(hidden)) == ("compute", "compute")
    slow = with_links(cluster, 1e6)
    busy = bottleneck_of(3.5, strategy, model, slow, costs)
    assert busy.kind == "link"
    assert str(busy).startswith("the nodes' links, ")
    waiting = bottleneck_of(0.1, strategy, model, with_links(cluster, 1e11), costs)
    assert waiting.kind == "waiting"
    one_slow = replace(cluster, alike=(), nodes=(replace(cluster.nodes[0], bandwidth_in=1e6), *cluster.nodes[1:]))
    assert bottleneck_of(3.5, strategy, model, one_slow, costs).link == "interface of host-0, in"


def _of_speeds(*speeds: float) -> ClusterSpec:
    nodes = [
        Node(name=f"n{n}", host=f"n{n}", bandwidth_out=1e12, bandwidth_in=1e12, compute=speed)
        for n, speed in enumerate(speeds)
    ]
    return ClusterSpec(name="speeds", nodes=tuple(nodes), launcher="ssh")


def test_a_slow_device_alone_takes_its_own_time() -> None:
    (alone,) = predict_scaling(_model(), _of_speeds(0.5), [1], find=_sharded).sizes
    assert alone.stock.step_seconds.value == pytest.approx(0.04)
    assert alone.stock.step_seconds.high == pytest.approx(0.04 * 1.05 ** (1.645 / 1.96))
    assert alone.stock.efficiency.value == pytest.approx(1.0)
    assert alone.stock.bottleneck.kind == "compute"


def test_fast_devices_that_wait_for_a_slow_one_cost_efficiency() -> None:
    (found,) = predict_scaling(_model(), _of_speeds(1.0, 0.5), [2], find=_sharded).sizes
    # Without waits, the ranks would train as many samples as two ranks of three quarters of the speed.
    step = found.stock.step_seconds.value
    assert step > 0.04
    assert found.stock.efficiency.value == pytest.approx(0.02 / 0.75 / step)
    assert found.stock.bottleneck.compute_share == pytest.approx(0.04 / step)
    assert found.stock.bottleneck.kind == "compute"


def test_what_ranks_share_inside_a_node_can_be_the_bottleneck() -> None:
    model = _model()
    node = Node(name="a", host="a", devices=2, bandwidth_out=1e12, bandwidth_in=1e12, intra_total=1e6)
    cluster = ClusterSpec(name="shared", nodes=(node, replace(node, name="b", host="b")), launcher="ssh")
    strategy, costs = default_as_strategy(model, cluster).strategy, usual_costs(cluster)
    assert strategy is not None
    (one,) = TimelineSimulator(model, cluster, costs=costs).predict([strategy])
    found = bottleneck_of(one.seconds, strategy, model, cluster, costs)
    assert (found.kind, found.link) == ("link", "inside of a")
    assert found.link_share > 0.9


def test_stock_ddp_also_sends_what_no_rank_uses() -> None:
    """Our own engine leaves it out, so the same buckets are predicted to be faster under it."""
    model, cluster = _model(), load_cluster("2-hosts")
    rarely = UseSample(groups=(("fc.weight", "fc.bias"),), steps=(("0", "0"), ("0", "0"), ("0", "0"), ("1", "1")))

    def same(model: ModelSpec, cluster: ClusterSpec, _simulator: Simulator, _costs: Costs, _seed: int) -> Candidate:
        return default_as_strategy(model, cluster)

    (always,) = predict_scaling(model, cluster, [2], find=same).sizes
    (found,) = predict_scaling(replace(model, use_sample=rarely), cluster, [2], find=same).sizes
    assert found.stock.step_seconds == always.stock.step_seconds
    assert found.stock.bottleneck == always.stock.bottleneck
    assert found.gain > 1.1
    assert found.best.bottleneck.link_share * found.best.step_seconds.value < (
        0.9 * found.stock.bottleneck.link_share * found.stock.step_seconds.value
    )


def test_the_knee_counts_the_devices_of_each_node() -> None:
    nodes = [
        Node(name=f"n{n}", host=f"n{n}", devices=count, bandwidth_out=1e12, bandwidth_in=1e12, intra_bandwidth=1e12)
        for n, count in enumerate((8, 8, 8, 1))
    ]
    cluster = ClusterSpec(name="uneven", nodes=tuple(nodes), launcher="ssh")
    found = predict_scaling(_model(seconds=10.0), cluster, [3, 4], find=_sharded)
    # No rank waits for long, and the fourth node adds one rank to 24.
    assert found.stock_knee is not None
    assert found.stock_knee.num_nodes == 3
    assert found.stock_knee.next_gain == pytest.approx(1 / 24, rel=0.2)


def test_a_prediction_is_a_table(found: ScalingPrediction) -> None:
    frame = found.to_frame()
    assert list(frame["nodes"]) == [1, 1, 2, 2, 4, 4, 16, 16]
    assert frame["step_ms"].tolist() == [1e3 * outlook.step_seconds.value for outlook in _outlooks(found)]
    assert frame["cost"].notna().all()
    assert "How many nodes pay: " in found._repr_html_()
    assert found._repr_html_().count("<tr") == 9
