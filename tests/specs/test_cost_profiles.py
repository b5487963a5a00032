"""The costs block of a cluster file, and the profiles that it names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync import documents
from autosync.errors import DocumentError, InputError, UnknownNameError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import dump_cluster, parse_cluster
from autosync.specs.cost_figures import FIGURES, Figure, figure_for_file, figure_in_words, read_figure
from autosync.specs.cost_profiles import CostChoice, cost_profile, figure_of, profile_names, with_figures
from autosync.specs.costs import Costs, ProcessorCosts, ServerCosts, WithinCosts

FILE = "schema: autosync.cluster/1\nlauncher: ssh\nnodes: [{name: a, count: 2, bandwidth: 1 Gbit/s}]\n"

AS_FITTED = Costs(
    transfer_seconds=120e-6,
    round_seconds=120e-6,
    native_round_seconds=170e-6,
    rate_added=2.5e9,
    local_seconds=100e-6,
    local_rates={
        "average": 1.5e9,
        "norm": 1e9,
        "copy": 2e9,
        "take": 2e9,
        "merge_rows": 2e8,
        "read_rows": 2e8,
        "write_rows": 2e8,
        "rebuild": 2e10,
        "outer": 3e8,
        "encode": 2e8,
        "decode": 4e8,
        "project": 1e9,
    },
    link_share=0.97,
    bytes_ahead=1e6,
    bytes_queued=5.8e6,
    queued_seconds=8e-3,
    payload_share=0.99,
    hop_seconds=30e-6,
    processor=ProcessorCosts(
        ask=(27e-6, 0.0),
        post=(27e-6, 0.0),
        asked=(31e-6, 21e-6),
        arrived=(27e-6, 17e-6),
        taken=(35e-6, 21e-6),
        per_byte=(1.9e-9, 0.3e-9),
        transfer=60e-6,
        stock_transfer=20e-6,
        local=40e-6,
        gradient=55e-6,
        stock_gradient=5e-6,
        update=15e-6,
        step=3.2e-3,
        stock_step=2.2e-3,
    ),
    probed_message_seconds=18.4e-6,
    stock_threads=2,
    within=WithinCosts(hop_seconds=None, native_round_seconds=None, rate=1.5e9),
    servers=ServerCosts(num_cores=1, update_rate=None),
)


def parsed(costs: str) -> ClusterSpec:
    return parse_cluster(documents.parse_document(FILE + costs, file="lab.yaml"))


def mistakes(costs: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        parsed(costs)
    return [str(problem) for problem in caught.value.problems]


def test_the_profile_of_gloo_is_what_was_fitted_to_its_records() -> None:
    assert cost_profile("gloo-cpu").costs == AS_FITTED


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_has_every_figure_with_its_source(name: str) -> None:
    profile = cost_profile(name)
    assert profile.about
    assert profile.sources.keys() == FIGURES.keys()
    assert all(profile.sources.values())


def test_the_profiles_that_ship() -> None:
    assert profile_names() == ("gloo-cpu", "nccl-nvlink", "nccl-pcie", "servers-cpu")
    with pytest.raises(UnknownNameError, match=r"unknown profile of costs 'nccl'.*nccl-pcie"):
        cost_profile("nccl")


def test_without_a_block_the_backend_and_the_links_within_nodes_decide() -> None:
    plain = parsed("")
    assert (plain.costs, plain.profile_of_costs) == (None, "gloo-cpu")
    over_nccl = replace(plain, backend="nccl")
    assert over_nccl.profile_of_costs == "nccl-pcie"
    for rate, profile in ((12e9, "nccl-pcie"), (150e9, "nccl-nvlink")):
        nodes = tuple(replace(node, devices=4, intra_bandwidth=rate) for node in plain.nodes)
        assert replace(over_nccl, nodes=nodes).profile_of_costs == profile


def test_a_block_names_a_profile_and_changes_figures() -> None:
    cluster = parsed("costs: {profile: servers-cpu, latency: 5 us, flow_limit: 8 Gbit/s, server_cores: 16}\n")
    assert cluster.profile_of_costs == "servers-cpu"
    assert cluster.costs == CostChoice(
        profile="servers-cpu", figures=(("latency", 5e-6), ("flow_limit", 1e9), ("server_cores", 16.0))
    )
    assert parsed("costs: {server_update_rate: none}\n").costs == CostChoice(figures=(("server_update_rate", None),))


def test_a_block_is_written_as_it_was_read() -> None:
    words = "costs: {profile: nccl-pcie, latency: 7 us, payload_share: 0.9, encode_rate: 3 G/s, socket_size: 2 MiB}\n"
    cluster = parsed(words)
    assert parse_cluster(documents.without_file(dump_cluster(cluster))) == cluster
    assert "costs" not in dump_cluster(parsed(""))


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        (
            "costs: {profile: nccl-pci}",
            (
                "lab.yaml:4: costs.profile: unknown profile of costs 'nccl-pci'"
                " (known: gloo-cpu, nccl-nvlink, nccl-pcie, servers-cpu); did you mean 'nccl-pcie'?"
            ),
        ),
        ("costs:\n  latency: 5", "lab.yaml:5: costs.latency: 5 is no time (write a time such as '2.5 ms' or '10min')"),
        (
            "costs: {payload_share: 1.5}",
            "lab.yaml:4: costs.payload_share: 1.5 is out of range (a share is a number above 0, at most 1)",
        ),
        (
            "costs: {encode_rate: 5 GB/s}",
            "lab.yaml:4: costs.encode_rate: '5 GB/s' is no pace (write elements a second such as '200 M/s')",
        ),
        (
            "costs: {server_cores: 0}",
            "lab.yaml:4: costs.server_cores: 0 is out of range (a whole number from 1 to 4096)",
        ),
        (
            "costs: {latency: none}",
            "lab.yaml:4: costs.latency: 'none' is no time (write a time such as '2.5 ms' or '10min')",
        ),
        ("costs: {profile: 3}", "lab.yaml:4: costs.profile: 3 is no name (profile names a profile of costs)"),
    ],
)
def test_mistakes_are_told_with_their_line(costs: str, expected: str) -> None:
    assert mistakes(costs) == [expected]


def test_an_unknown_figure_is_told_with_the_nearest_one() -> None:
    (found,) = mistakes("costs: {latenzy: 5 us}")
    assert found.startswith("lab.yaml:4: costs.latenzy: unknown key (known: latency, ")
    assert found.endswith("did you mean 'latency'?")


def test_a_choice_that_is_built_in_code_is_checked() -> None:
    with pytest.raises(InputError, match="no figure of costs"):
        replace(parsed(""), costs=CostChoice(figures=(("speed", 1.0),)))
    with pytest.raises(InputError, match="a share is a number above 0"):
        replace(parsed(""), costs=CostChoice(figures=(("link_share", 0.0),)))


VALUES = {
    "time": st.floats(0, 60),
    "rate": st.floats(1e-3, 1e15),
    "size": st.integers(0, 2**50).map(float),
    "share": st.floats(0.01, 1.0),
    "pace": st.floats(1e-3, 1e15),
    "count": st.integers(1, 4096).map(float),
}


@given(data=st.data(), figure=st.sampled_from(list(FIGURES.values())))
def test_every_figure_is_set_and_read_back(data: st.DataObject, figure: Figure) -> None:
    value = data.draw(VALUES[figure.unit])
    assert read_figure(figure, figure_for_file(figure.name, value)) == pytest.approx(value, rel=1e-12)
    found = with_figures(AS_FITTED, {figure.name: value})
    assert figure_of(found, figure.name) == value
    others = [name for name in FIGURES if name != figure.name]
    assert [figure_of(found, name) for name in others] == [figure_of(AS_FITTED, name) for name in others]
    assert figure_in_words(figure.name, value)
