"""`autosync strategy`: build, show, check and compare strategy files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autosync.cli.operands import CLUSTER_HELP, context_options, model_and_cluster, strategy_operand
from autosync.cli.output import force_option, json_option, note, print_json, print_text, refuse_overwrite
from autosync.cli.profile_warnings import profile_warning_lines
from autosync.errors import InputError

if TYPE_CHECKING:
    from autosync.specs.cluster import ClusterSpec
    from autosync.specs.model import ModelSpec
    from autosync.strategy.representation import Strategy
    from autosync.strategy.stages import ModelStage, PipelineSchedule

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_FRACTION = re.compile(r"-?[0-9]{0,18}\.?[0-9]{1,18}(e-?[0-9]{1,2})?")


@click.group()
def strategy() -> None:
    """Build, show, check and compare strategies.

    S is a strategy file or a bundle; `show` and `validate` also take the name of a preset.
    """


@strategy.command(epilog="\b\nExample:\n  autosync strategy presets --json")
@json_option
def presets(*, as_json: bool) -> None:
    """List the presets: builders of known hand-designed strategies."""
    from autosync.strategy.presets import preset_names, preset_options, preset_summary
    from autosync.strategy.wording import format_table

    found = [(name, preset_summary(name), preset_options(name)) for name in preset_names()]
    if as_json:
        print_json([{"name": name, "summary": text, "options": dict(options)} for name, text, options in found])
        return
    rows = [(name, " ".join(f"{key}={_written(value)}" for key, value in o.items()), text) for name, text, o in found]
    print_text(format_table(rows, header=("preset", "options", "what it does")))


@strategy.command(
    epilog="""\b
Examples:
  autosync strategy build ddp resnet50 --cluster 4-hosts
  autosync strategy build ddp_cap model.py --cluster cluster.yaml --option cap_bytes="4 MB" -o ddp.yaml
  autosync strategy build hierarchical model.py --cluster cluster.yaml --bundle -o bundle.yaml
  autosync strategy build rack_levels gpt2_small --cluster 16-hosts-2-racks --option fitted=true -o fitted.yaml"""
)
@click.argument("preset")
@click.argument("model_target", metavar="MODEL")
@click.option("--cluster", "cluster_target", metavar="CLUSTER", required=True, help=CLUSTER_HELP)
@click.option(
    "--option",
    "assignments",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option of the preset, as `autosync strategy presets` lists them.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="S.yaml", help="Write the strategy here.")
@click.option("--bundle", "is_bundle", is_flag=True, help="Make a bundle for launch and parallelize.")
@force_option
@json_option
def build(
    *,
    preset: str,
    model_target: str,
    cluster_target: str,
    assignments: tuple[str, ...],
    output: Path | None,
    is_bundle: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Build the strategy of a preset for MODEL on a cluster.

    MODEL is a model spec, the name of a shipped one, or a task (FILE.py). Without -o the strategy is printed. A bundle
    is a strategy together with its model and cluster.
    """
    from autosync.strategy.presets import PRESETS, build_preset
    from autosync.strategy.presets.pipelines import PIPELINES

    refuse_overwrite(output, force=force)
    options = _options(assignments)
    PRESETS.get(preset)  # refuses a misspelt name before a task is profiled
    model, cluster = model_and_cluster(model_target, cluster_target, cuts=preset in PIPELINES)
    built = build_preset(preset, model, cluster, **options)
    _write(built, model, cluster, output, is_bundle=is_bundle, as_json=as_json)


def _write(
    built: Strategy, model: ModelSpec, cluster: ClusterSpec, output: Path | None, *, is_bundle: bool, as_json: bool
) -> None:
    """Write or print a strategy that was made for a model and a cluster, or its bundle."""
    from autosync import documents
    from autosync.plan.bundling import bundled
    from autosync.strategy.bundle import dump_bundle, save_bundle
    from autosync.strategy.describe import in_words
    from autosync.strategy.files import dump_strategy, save_strategy

    for line in profile_warning_lines(model):
        note(line)
    bundle = bundled(built, model, cluster) if is_bundle else None
    if output is not None:
        if bundle is None:
            save_strategy(output, built)
        else:
            save_bundle(output, bundle)
        note(f"wrote {output}: {in_words(built, model)}")
    fields = dump_strategy(built) if bundle is None else dump_bundle(bundle)
    if as_json:
        print_json(fields)
    elif output is None:
        print(documents.format_yaml(fields), end="")


@strategy.command(
    epilog="""\b
Examples:
  autosync profile model.py --cuts -o model.yaml
  autosync strategy divide model.yaml --cluster cluster.yaml --bundle -o stages.yaml
  autosync strategy divide model.yaml --cluster cluster.yaml --microbatches 16 --stage 0:0 --stage 12:1+2"""
)
@click.argument("model_target", metavar="MODEL")
@click.option("--cluster", "cluster_target", metavar="CLUSTER", required=True, help=CLUSTER_HELP)
@click.option(
    "--microbatches", type=click.IntRange(min=1), metavar="N", help="Parts of the global batch.  [default: the best]"
)
@click.option(
    "--schedule",
    type=click.Choice(("gpipe", "1f1b", "interleaved", "zero_bubble", "2bw", "stashing")),
    default="1f1b",
    show_default=True,
    help="The order of passes; 2bw and stashing have no flush, and gradients of older parameters.",
)
@click.option(
    "--slack",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    metavar="N",
    help="Microbatches under way beyond what stages work on, to hide sends (not gpipe).",
)
@click.option("--recompute", is_flag=True, help="Compute activations again in backward passes: slower, less memory.")
@click.option(
    "--stage",
    "places",
    multiple=True,
    metavar="SEGMENT:RANKS",
    help="A stage that begins before this segment, on these ranks (0:0, 12:1+2).  [default: the best]",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="S.yaml", help="Write the strategy here.")
@click.option("--bundle", "is_bundle", is_flag=True, help="Make a bundle for launch and trainer.")
@force_option
@json_option
def divide(
    *,
    model_target: str,
    cluster_target: str,
    microbatches: int | None,
    schedule: PipelineSchedule,
    slack: int,
    recompute: bool,
    places: tuple[str, ...],
    output: Path | None,
    is_bundle: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Divide MODEL into stages, each computed by some ranks of a cluster.

    MODEL is a task, or a model spec with cuts (autosync profile --cuts). autosync.trainer trains with the strategy.
    """
    from autosync.strategy import legality
    from autosync.strategy.dividing.divide import divide as divided
    from autosync.strategy.dividing.divided import divided_strategy
    from autosync.strategy.dividing.timed import timed

    refuse_overwrite(output, force=force)
    stages = [_stage(text) for text in places]
    if stages and microbatches is None:
        raise click.UsageError("--stage goes with --microbatches")
    model, cluster = model_and_cluster(model_target, cluster_target, cuts=True)
    if stages and microbatches is not None:
        built = divided_strategy(model, stages, microbatches, schedule, slack, recompute=recompute)
        legality.check(built, model, cluster)
        built = timed(built, model, cluster)
    else:
        how: dict[str, Any] = {"schedule": schedule, "slack": slack, "recompute": recompute}
        built = divided(model, cluster, microbatches=microbatches, **how)
    _write(built, model, cluster, output, is_bundle=is_bundle, as_json=as_json)


def _stage(text: str) -> ModelStage:
    """Parse a stage such as `12:1+2`."""
    from autosync.strategy.stages import ModelStage

    before, _, ranks = text.partition(":")
    try:
        return ModelStage(before=int(before), ranks=tuple(int(rank) for rank in ranks.split("+")))
    except ValueError as error:
        raise InputError(f"{text!r} is no stage", rule="SEGMENT:RANK+RANK, such as 12:1+2") from error


@strategy.command(
    epilog="""\b
Examples:
  autosync strategy show best.yaml
  autosync strategy show ddp.yaml --model resnet50 --cluster 4-hosts --full"""
)
@click.argument("path", metavar="S", type=click.Path(path_type=Path))
@context_options
@click.option("--full", is_flag=True, help="Show every message, and the whole plan.")
@json_option
def show(*, path: Path, model_target: str | None, cluster_target: str | None, full: bool, as_json: bool) -> None:
    """Show a strategy in words and as tables. If its model and cluster are given, show sizes and the plan too.

    A bundle contains its model and cluster.
    """
    from autosync.documents import to_plain
    from autosync.plan.describe import describe_plan
    from autosync.plan.identity import plan_id
    from autosync.plan.lowering import lower
    from autosync.runtime.varying.expected_bytes import expected_traffic
    from autosync.specs.profile.quality import profile_fields
    from autosync.strategy.canonical import strategy_id
    from autosync.strategy.describe import describe, summarise
    from autosync.strategy.files import dump_strategy

    operand = strategy_operand(str(path), model_target, cluster_target)
    found, model, cluster = operand.strategy, operand.model, operand.cluster
    if model is None or cluster is None:
        if as_json:
            print_json({"strategy": dump_strategy(found), "summary": to_plain(summarise(found))})
        else:
            print_text(describe(found, full=full))
        return
    plan = lower(found, model, cluster)
    identities = {"strategy_id": strategy_id(found, model, cluster), "plan_id": plan_id(plan, cluster)}
    if as_json:
        summary = to_plain(summarise(found, model))
        profile = profile_fields(model)
        facts = {"strategy": dump_strategy(found), **identities, "summary": summary, "profile": profile}
        print_json({**facts, "plan": to_plain(plan)} if full else facts)
    else:
        print_text("\n".join([describe(found, model, full=full), *profile_warning_lines(model, after="\n")]))
        print_text("\n" + "\n".join(f"{name.replace('_', ' ')}: {value}" for name, value in identities.items()))
        expected = expected_traffic(plan, model, cluster)
        limit = {"limit": None} if full else {}
        print_text("\n" + describe_plan(plan, cluster, expected=expected, **limit))


@strategy.command(
    epilog="""\b
Examples:
  autosync strategy validate ddp.yaml --model resnet50 --cluster 4-hosts
  autosync strategy validate best.yaml"""
)
@click.argument("path", metavar="S", type=click.Path(path_type=Path))
@context_options
@json_option
def validate(*, path: Path, model_target: str | None, cluster_target: str | None, as_json: bool) -> None:
    """Check a strategy against its model and cluster, and print a line for each rule that it breaks.

    A bundle contains its model and cluster.
    """
    from autosync.strategy.canonical import strategy_id

    operand = strategy_operand(str(path), model_target, cluster_target)
    found, model, cluster = operand.in_context("whether a strategy is legal depends on its model and cluster")
    identity = strategy_id(found, model, cluster)
    if as_json:
        classes = sorted(found.classes)
        print_json({"legal": True, "model": model.name, "cluster": cluster.name, "classes": classes, "id": identity})
    else:
        print_text(
            f"{path} is legal for {model.name} on {cluster.name}: {', '.join(sorted(found.classes))}; id {identity}"
        )


@strategy.command(epilog="\b\nExample:\n  autosync strategy diff ddp.yaml best.yaml")
@click.argument("first", metavar="S1", type=click.Path(path_type=Path))
@click.argument("second", metavar="S2", type=click.Path(path_type=Path))
@json_option
def diff(*, first: Path, second: Path, as_json: bool) -> None:
    """Compare two strategies, part by part and aspect by aspect."""
    from autosync.strategy.diff import diff as differences_of
    from autosync.strategy.diff import format_diff
    from autosync.strategy.files import load_strategy

    differences = differences_of(load_strategy(first)[0], load_strategy(second)[0])
    if as_json:
        print_json(differences)
    else:
        print_text(format_diff(differences))


def _options(assignments: Sequence[str]) -> dict[str, Any]:
    """Parse options such as `cap_bytes=4 MB`: true, false and numbers as such, everything else as text."""
    found: dict[str, Any] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"{text!r} is no option", rule="NAME=VALUE, such as cap_bytes=4MB")
        if name in found:
            raise InputError(f"the option {name} is given twice", rule="an option once")
        found[name] = _value(value)
    return found


def _value(text: str) -> bool | float | str:
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FRACTION.fullmatch(text) else text


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
