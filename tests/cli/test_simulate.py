"""`autosync simulate`: strategies ranked in words and as JSON; others are refused with the reason."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.plan.bound import bound
from autosync.plan.stage_bound import stage_bound
from autosync.simulators.catalogue import open_simulator, simulator_names
from autosync.simulators.timeline import scene_builder
from autosync.specs.cluster_file import load_cluster, save_cluster
from autosync.specs.model import Timeline
from autosync.specs.model_file import load_model, save_model
from autosync.specs.use_sample import UseSample
from autosync.strategy.bundle import Bundle, save_bundle
from autosync.strategy.canonical import strategy_id
from autosync.strategy.files import load_strategy_for
from autosync.strategy.presets import build_preset
from autosync.units import format_time

if TYPE_CHECKING:
    from typing import Any

    Build = Callable[..., Path]
    Shell = Any  # the class of the fixture in conftest.py, which tests cannot import

CONTEXT = ("--model", "model.yaml", "--cluster", "cluster.yaml")


def test_strategies_are_ranked(shell: Shell, build: Build) -> None:
    path = build("sharded", "sharded.yaml")
    found = shell.json("simulate", "ps", path, "ddp", *CONTEXT)
    assert (found["schema"], found["model"], found["cluster"]) == ("autosync.simulation/1", "tiny", "three")
    seconds = [one["seconds"] for one in found["predictions"]]
    assert seconds == sorted(seconds)
    assert {one["name"] for one in found["predictions"]} == {"ps", "ddp", "sharded.yaml"}
    model, cluster = load_model("model.yaml"), load_cluster("cluster.yaml")
    (expected,) = open_simulator("timeline", model, cluster).predict([build_preset("ddp", model, cluster)])
    (ddp,) = (one for one in found["predictions"] if one["name"] == "ddp")
    assert ddp["seconds"] == pytest.approx(expected.seconds)
    assert ddp["exposed_seconds"] == pytest.approx(expected.seconds - model.step_seconds)
    assert found["bound"]["seconds"] == pytest.approx(bound(model, cluster).seconds)
    assert "bound_with_stages" not in found


def test_the_bound_of_strategies_with_stages_is_told_where_the_model_can_be_divided(shell: Shell) -> None:
    arguments = ("simulate", "ddp", "--model", "bert_tiny@x4", "--cluster", "4-hosts", "--simulator", "analytical")
    model, cluster = load_model("bert_tiny@x4"), load_cluster("4-hosts")
    divided = stage_bound(model, cluster)
    assert divided is not None
    assert shell.json(*arguments)["bound_with_stages"]["seconds"] == pytest.approx(divided.seconds)
    assert shell.run(*arguments) == 0
    assert f"No exact strategy without stages can be faster than {bound(model, cluster).largest}." in shell.out
    assert f"With stages, none can be faster than {divided.largest}." in shell.out


def test_compute_is_that_of_the_slowest_device(shell: Shell) -> None:
    model, cluster = load_model("model.yaml"), load_cluster("cluster.yaml")
    slow = replace(cluster.nodes[0], compute=0.25)
    save_cluster(Path("slow.yaml"), replace(cluster, alike=(), nodes=(slow, *cluster.nodes[1:])))
    found = shell.json("simulate", "ddp", "--model", "model.yaml", "--cluster", "slow.yaml")
    assert found["compute_seconds"] == pytest.approx(4 * model.step_seconds)
    (ddp,) = found["predictions"]
    assert ddp["exposed_seconds"] == pytest.approx(ddp["seconds"] - 4 * model.step_seconds)
    assert shell.run("simulate", "ddp", "--model", "model.yaml", "--cluster", "slow.yaml") == 0, shell.err
    assert f"Compute alone takes {format_time(4 * model.step_seconds)} a step on the slowest device." in shell.out


def test_means_over_steps_that_use_different_parameters_are_told(shell: Shell) -> None:
    model = load_model("model.yaml")
    first = model.variables[0]
    sample = UseSample(groups=((first.name,),), steps=(("0", "0", "0"), ("1", "0", "0")))
    save_model(replace(model, use_sample=sample), "varying.yaml")
    context = ("--model", "varying.yaml", "--cluster", "cluster.yaml")
    (found,) = shell.json("simulate", "all_reduce_per_variable", *context)["predictions"]
    assert found["travelled_share"] == pytest.approx(1 - 0.5 * first.num_bytes / model.num_bytes)
    assert shell.run("simulate", "all_reduce_per_variable", *context) == 0, shell.err
    assert "of its bytes" in shell.out
    assert "Not every step uses all parameters" in shell.out
    assert shell.run("strategy", "build", "ddp", "varying.yaml", "--cluster", "cluster.yaml", "-o", "d.yaml") == 0
    assert shell.run("strategy", "show", "d.yaml", *context) == 0, shell.err
    assert "a step moves on average, as not every step uses all parameters" in shell.out
    assert "a step that uses all parameters moves" in shell.out


def test_the_table_has_the_fastest_first(shell: Shell) -> None:
    assert shell.run("simulate", "ps", "ddp", *CONTEXT) == 0, shell.err
    text = shell.out
    found = shell.json("simulate", "ps", "ddp", *CONTEXT)
    lines = text.splitlines()
    assert lines[0] == "tiny on three, predicted by timeline:"
    names = [line.split()[0] for line in lines[3:5]]
    assert names == [one["name"] for one in found["predictions"]]
    assert lines[3].split()[2] == "1.000"
    assert "The cluster was not probed" in lines[-1]


@pytest.mark.parametrize("name", ["analytical", "timeline"])
def test_any_simulator_may_be_asked(shell: Shell, name: str) -> None:
    assert name in simulator_names()
    found = shell.json("simulate", "ddp", *CONTEXT, "--simulator", name)
    assert found["simulator"] == name
    assert found["predictions"][0]["seconds"] >= found["bound"]["seconds"]


def test_a_bundle_knows_what_it_is_for(shell: Shell, build: Build) -> None:
    model, cluster = load_model("model.yaml"), load_cluster("cluster.yaml")
    strategy = load_strategy_for(build("ddp", "ddp.yaml"), model, cluster)
    identity = strategy_id(strategy, model, cluster)
    made = Bundle(strategy=strategy, model=model, cluster=cluster, strategy_id=identity, plan_id="0" * 16)
    save_bundle("best.yaml", made)
    (one,) = shell.json("simulate", "best.yaml")["predictions"]
    assert one["strategy_id"] == identity


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("simulate", "ddp"), "ddp names no model and no cluster"),
        (("simulate", "ddp", "ps"), "no model and no cluster are named"),
        (("simulate", "ddp", "--model", "model.yaml"), "--cluster is missing"),
        (("simulate", "dpd", *CONTEXT), "unknown preset 'dpd'"),
        (("simulate", "ddp", *CONTEXT, "--simulator", "timelin"), "unknown simulator 'timelin'"),
        (("simulate", "ddp", "ddp", *CONTEXT), "ddp is named twice"),
        (("simulate", "nowhere.yaml", *CONTEXT), "nowhere.yaml"),
        (("simulate", "ddp", "ps", *CONTEXT, "--trace", "out.json"), "--trace is of one strategy"),
        (("simulate", "ddp", *CONTEXT, "--trace", "model.yaml"), "model.yaml exists"),
        (("simulate", "ddp", *CONTEXT, "--prior", "."), "timeline learns nothing from --prior"),
        (("simulate", "ddp", *CONTEXT, "--simulator", "linear", "--prior", "none"), "--prior none: there is no such"),
        (("simulate", "ddp", *CONTEXT, "--simulator", "linear", "--prior", "shipped"), "nothing ships for"),
        (("simulate", "ddp", *CONTEXT, "--simulator", "linear", "--prior", "."), ". holds no records"),
    ],
)
def test_what_cannot_be_simulated_is_refused(shell: Shell, arguments: tuple[str, ...], complaint: str) -> None:
    assert shell.run(*arguments) == 2
    assert complaint in shell.err
    assert not shell.out


def test_a_trace_is_written(shell: Shell) -> None:
    assert shell.run("simulate", "ddp", *CONTEXT, "--trace", "out.json") == 0, shell.err
    assert "wrote out.json" in shell.err
    events = json.loads(Path("out.json").read_text(encoding="utf-8"))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == {0, 1, 2}
    assert any("all_reduce" in event["name"] for event in spans)


def test_one_strategy_is_explained(shell: Shell) -> None:
    found = shell.json("simulate", "ddp", *CONTEXT)
    explained = found["explanation"]
    assert explained["seconds"] == pytest.approx(found["predictions"][0]["seconds"])
    path = explained["critical_path"]
    assert sum(one["end_seconds"] - one["start_seconds"] for one in path) <= explained["seconds"] * 1.01
    assert shell.run("simulate", "ddp", *CONTEXT) == 0
    assert "from one step's end to the next one's, of which" in shell.out
    assert "Busiest links:" in shell.out
    assert shell.json("simulate", "ddp", "ps", *CONTEXT)["explanation"] is None


def test_a_model_without_times_takes_none_alone(shell: Shell) -> None:
    model, cluster = load_model("model.yaml"), load_cluster("cluster.yaml")
    segments = tuple(replace(one, seconds=0.0) for one in (*model.timeline.forward, *model.timeline.backward))
    count = len(model.timeline.forward)
    timeline = Timeline(device="none", source="computed", forward=segments[:count], backward=segments[count:])
    save_model(replace(model, timeline=timeline), "untimed.yaml")
    save_cluster(Path("alone.yaml"), replace(cluster, alike=(), nodes=(replace(cluster.nodes[0], devices=1),)))
    context = ("--model", "untimed.yaml", "--cluster", "alone.yaml")
    for names in (("ddp",), ("ddp", "all_reduce_per_variable")):
        assert shell.run("simulate", *names, *context) == 0, shell.err


def test_a_plan_of_very_many_messages_is_not_explained(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene_builder, "MOST_MESSAGES", 0)
    assert shell.json("simulate", "ddp", *CONTEXT)["explanation"] is None
    assert shell.run("simulate", "ddp", *CONTEXT, "--trace", "out.json") == 2
    assert "every message is played of plans with up to 0 messages a step" in shell.err


def test_a_step_that_averages_is_explained_by_its_own_time(shell: Shell) -> None:
    explained = shell.json("simulate", "local_sgd", *CONTEXT)["explanation"]
    assert explained["average_seconds"] > explained["seconds"]
    assert shell.run("simulate", "local_sgd", *CONTEXT) == 0, shell.err
    assert f"A step that averages takes {format_time(explained['average_seconds'])}, of which" in shell.out
    assert f"the mean of all steps is {format_time(explained['seconds'])}." in shell.out
    shares = [int(share) for share in re.findall(r"^ +(\d+)% ", shell.out, re.MULTILINE)]
    assert 0 < sum(shares) <= 102
    assert shell.json("simulate", "ddp", *CONTEXT)["explanation"]["average_seconds"] is None


def test_nothing_is_simulated_for_a_strategy_of_another_model(shell: Shell, build: Build) -> None:
    path = build("ddp", "ddp.yaml")
    path.write_text(path.read_text(encoding="utf-8").replace("fc.bias", "head.bias"), encoding="utf-8")
    assert shell.run("simulate", path, "ps", *CONTEXT) == 2
    assert "head.bias" in shell.err


def test_torch_is_not_loaded(shell: Shell) -> None:
    """In an interpreter of its own, because this one may have it."""
    arguments = ["simulate", "ddp", *CONTEXT, "--simulator", "analytical"]
    code = (
        f"import sys; from autosync.cli import main; assert main.run({arguments!r}) == 0; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
