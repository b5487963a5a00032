"""`autosync strategy`: every sub-command works in words and as JSON, and overwrites files only on request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.plan.bundling import bundled
from autosync.plan.describe import describe_plan
from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model
from autosync.strategy.bundle import Bundle, dump_bundle, load_bundle, save_bundle
from autosync.strategy.canonical import strategy_id
from autosync.strategy.codecs import TopK
from autosync.strategy.files import load_strategy, load_strategy_for
from autosync.strategy.presets import build_preset, preset_names

if TYPE_CHECKING:
    from typing import Any

    Build = Callable[..., Path]
    Shell = Any  # the class of the fixture in conftest.py, which tests cannot import

FOR_MODEL = ("--model", "model.yaml", "--cluster", "cluster.yaml")


@pytest.fixture
def bundle(build: Build) -> Path:
    """A bundle as a tuning run would leave it."""
    model, cluster = load_model("model.yaml"), load_cluster("cluster.yaml")
    strategy = load_strategy_for(build("sharded", "sharded.yaml"), model, cluster)
    identity = strategy_id(strategy, model, cluster)
    made = Bundle(strategy=strategy, model=model, cluster=cluster, strategy_id=identity, plan_id="0" * 16)
    save_bundle("best.yaml", made)
    return Path("best.yaml")


def test_presets_are_listed_with_their_options(shell: Shell) -> None:
    assert shell.run("strategy", "presets") == 0
    lines = shell.out.splitlines()
    assert lines[0].split() == ["preset", "options", "what", "it", "does"]
    assert [line.split()[0] for line in lines[1:]] == list(preset_names())
    found = {preset["name"]: preset for preset in shell.json("strategy", "presets")}
    assert found.keys() == set(preset_names())
    assert found["ddp_cap"]["options"] == {"cap_bytes": 26214400}


def test_build_prints_a_strategy_that_can_be_saved(shell: Shell) -> None:
    arguments = ("strategy", "build", "ddp", "model.yaml", "--cluster", "cluster.yaml")
    assert shell.run(*arguments) == 0
    Path("s.yaml").write_text(shell.out)
    expected = build_preset("ddp", load_model("model.yaml"), load_cluster("cluster.yaml"))
    assert load_strategy("s.yaml")[0] == expected
    assert shell.json(*arguments)["schema"] == "autosync.strategy/1"


def test_build_takes_options_and_writes_a_file(shell: Shell, build: Build) -> None:
    path = build("ddp_cap", "s.yaml", "--option", "cap_bytes=1 kB")
    assert shell.out == ""
    assert shell.err == "wrote s.yaml: all variables are all-reduced in 3 messages\n"
    assert len(load_strategy(path)[0].messages) == 3


@pytest.mark.parametrize(("written", "ratio"), [("0.25", 0.25), (".25", 0.25), ("2.5e-1", 0.25), ("1", 1.0)])
def test_options_may_be_fractions(written: str, ratio: float, build: Build) -> None:
    path = build("dgc", "s.yaml", "--option", f"ratio={written}", "--option", "momentum=0.0")
    assert {one.codec.ratio for one in load_strategy(path)[0].messages if isinstance(one.codec, TopK)} == {ratio}


def test_build_writes_a_bundle_with_its_model_and_cluster(shell: Shell, build: Build) -> None:
    path = build("sharded", "bundle.yaml", "--bundle")
    assert shell.err.startswith("wrote bundle.yaml: all variables are reduce-scattered")
    made = load_bundle(path)
    model, cluster = load_model("model.yaml"), load_cluster("cluster.yaml")
    made.check(model, cluster)
    assert made == bundled(build_preset("sharded", model, cluster), model, cluster)
    arguments = ("strategy", "build", "sharded", "model.yaml", "--cluster", "cluster.yaml", "--bundle")
    assert shell.json(*arguments) == dump_bundle(made)
    assert shell.run(*arguments) == 0
    Path("printed.yaml").write_text(shell.out, encoding="utf-8")
    assert load_bundle("printed.yaml") == made


def test_a_strategy_in_place_of_a_bundle_is_answered_with_the_way_to_one(shell: Shell, build: Build) -> None:
    build("ddp", "s.yaml")
    assert shell.run("launch", "s.yaml", "--", "train.py") == 2
    assert "s.yaml: is a strategy, not a bundle" in shell.err
    assert "autosync strategy build PRESET MODEL --cluster C --bundle -o B.yaml" in shell.err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("dpd",), "error: unknown preset 'dpd' (known: all_reduce_chunks, all_reduce_per_variable, "),
        (("ddp_cap", "--option", "cap=1"), "error: unknown option of preset ddp_cap 'cap' (known: cap_bytes)"),
        (("ddp_cap", "--option", "cap_bytes"), "error: 'cap_bytes' is no option (NAME=VALUE, such as "),
        (
            ("ddp", "--option", "rebuilt=true", "--option", "rebuilt=false"),
            "error: the option rebuilt is given twice (",
        ),
        (("hierarchical",), "error: preset.hierarchical: three has one rank on every node ("),
    ],
)
def test_build_says_what_it_cannot_do(arguments: tuple[str, ...], line: str, shell: Shell) -> None:
    preset, *options = arguments
    assert shell.run("strategy", "build", preset, "model.yaml", "--cluster", "cluster.yaml", *options) == 2
    assert shell.out == ""
    assert shell.err.startswith(line)


def test_no_file_is_replaced_unasked(shell: Shell, build: Build) -> None:
    path = build("ddp", "s.yaml")
    before = path.read_text()
    arguments = ("strategy", "build", "sharded", "model.yaml", "--cluster", "cluster.yaml", "-o", path)
    assert shell.run(*arguments) == 2
    assert shell.err == "error: s.yaml exists (no file is replaced unasked); --force replaces it\n"
    assert path.read_text() == before
    assert shell.run(*arguments, "--force") == 0
    assert path.read_text() != before
    assert shell.run("strategy", "build", "ddp", "model.yaml", "--cluster", "cluster.yaml", "-o", ".", "--force") == 2


def test_show_a_file_alone(shell: Shell, build: Build) -> None:
    path = build("ddp_cap", "s.yaml", "--option", "cap_bytes=1 kB")
    assert shell.run("strategy", "show", path) == 0
    assert shell.out.startswith("ddp_cap(cap_bytes=1 kB): all variables are all-reduced in 3 messages\n")
    assert "bytes  variables" not in shell.out
    shown = shell.json("strategy", "show", path)
    assert shown.keys() == {"strategy", "summary"}


def test_show_for_a_model_tells_bytes_and_the_id(shell: Shell, build: Build) -> None:
    path = build("ddp", "s.yaml")
    assert shell.run("strategy", "show", path, *FOR_MODEL) == 0
    model, cluster = load_model("model.yaml"), load_cluster("cluster.yaml")
    identity = strategy_id(load_strategy(path)[0], model, cluster)
    assert f"strategy id: {identity}\nplan id: " in shell.out
    assert "fc.bias, fc.weight" in shell.out
    assert describe_plan(lower(load_strategy(path)[0], model, cluster), cluster) in shell.out
    shown = shell.json("strategy", "show", path, *FOR_MODEL)
    assert shown["strategy_id"] == identity
    assert shown["plan_id"] == plan_id(lower(load_strategy(path)[0], model, cluster), cluster)
    assert shown["summary"]["total"]["num_bytes"] == model.num_bytes
    assert "plan" not in shown
    assert shell.json("strategy", "show", path, *FOR_MODEL, "--full")["plan"]["operations"]


def test_a_preset_is_shown_without_a_file(shell: Shell, build: Build) -> None:
    path = build("ddp", "s.yaml")
    named, filed = (shell.json("strategy", "show", name, *FOR_MODEL) for name in ("ddp", path))
    assert named["strategy_id"] == filed["strategy_id"]
    assert shell.run("strategy", "validate", "ddp", *FOR_MODEL) == 0
    assert shell.run("strategy", "show", "ddp") == 2
    assert shell.err.startswith("error: ddp names no model and no cluster (a preset is built for ")


def test_show_needs_model_and_cluster_together(shell: Shell, build: Build) -> None:
    assert shell.run("strategy", "show", build("ddp", "s.yaml"), "--model", "model.yaml") == 2
    assert shell.err == "error: --cluster is missing (--model and --cluster go together)\n"


def test_a_bundle_knows_its_model_and_cluster(shell: Shell, bundle: Path) -> None:
    assert shell.run("strategy", "show", bundle) == 0
    assert "strategy id: " in shell.out
    assert shell.run("strategy", "validate", bundle) == 0
    assert shell.out.startswith("best.yaml is legal for tiny on three: exact; id ")


def test_validate(shell: Shell, build: Build) -> None:
    path = build("ddp", "s.yaml")
    assert shell.run("strategy", "validate", path, *FOR_MODEL) == 0
    assert shell.out.startswith("s.yaml is legal for tiny on three: exact; id ")
    found = shell.json("strategy", "validate", path, *FOR_MODEL)
    assert (found["legal"], found["classes"]) == (True, ["exact"])
    assert shell.run("strategy", "validate", path) == 2
    assert shell.err.endswith("; give --model and --cluster\n")


def test_validate_tells_each_mistake_with_its_line(shell: Shell, build: Build) -> None:
    path = build("ps_load_balanced", "s.yaml")
    lines = path.read_text().replace("server: n2", "server: n7").replace("fc.bias", "fc.bais").splitlines()
    path.write_text("\n".join(lines))
    assert shell.run("strategy", "validate", path, *FOR_MODEL, "--json") == 2
    assert shell.out == ""
    wanted = {f"error: s.yaml:{number}: " for number, line in enumerate(lines, 1) if "n7" in line or "bais" in line}
    told = shell.err.splitlines()
    assert len(wanted) >= 2
    assert all(any(line.startswith(start) for line in told) for start in wanted)
    assert all(line.startswith("error: s.yaml:") for line in told)
    assert any("did you mean 'fc.bias'?" in line for line in told)


def test_diff(shell: Shell, build: Build, bundle: Path) -> None:
    path = build("ddp", "s.yaml")
    assert shell.run("strategy", "diff", path, path) == 0
    assert shell.out == "no difference\n"
    assert shell.run("strategy", "diff", path, bundle) == 0
    everything = "fc.bias, fc.weight, conv.bias, conv.weight"
    assert f"{everything}: synchroniser: all_reduce -> sharded\n" in shell.out
    first, *_ = shell.json("strategy", "diff", path, bundle)
    assert first == {
        "aspect": "synchroniser",
        "before": "all_reduce",
        "after": "sharded",
        "places": ["fc.bias", "fc.weight", "conv.bias", "conv.weight"],
    }
    assert shell.json("strategy", "diff", path, path) == []


def test_a_missing_file_is_a_mistake_of_the_input(shell: Shell) -> None:
    assert shell.run("strategy", "show", "nowhere.yaml") == 2
    assert shell.err.startswith("error: nowhere.yaml: cannot be read: No such file or directory (")


def test_the_page_on_the_representation_shows_what_is_printed(shell: Shell) -> None:
    page = (Path(__file__).parents[2] / "docs" / "representation.md").read_text(encoding="utf-8")
    Path("large.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    shown = [block.split("```")[0].partition("\n") for block in page.split("```text\n$ ")[1:]]
    assert len(shown) == 2
    for command, _, output in shown:
        shell.run(*command.split()[1:])
        assert shell.out + shell.err == output
