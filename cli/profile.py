"""`autosync profile`: run a task's model and write its model spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from autosync import units
from autosync.cli.output import force_option, json_option, note, print_json, print_text, refuse_overwrite

if TYPE_CHECKING:
    from autosync.specs.model import ModelSpec, OptimizerSpec, Segment
    from autosync.specs.task import Task


@click.command(
    epilog="""\b
Examples:
  autosync profile model.py -o model.yaml
  autosync profile model.py:small_task --device cuda --steps 20 -o small.yaml
  autosync profile model.py --times computed --rate T4 --cuts -o model.yaml
  autosync profile model.py --times computed --rate A100 --precision mixed -o model.yaml
  autosync profile model.py --times scaled --device cuda --rate H100 -o model.yaml
  autosync profile model.py --batch-sizes 8,16,32,64 --cuts -o model.yaml
  autosync profile model.py --input data.py:images -o model.yaml"""
)
@click.argument("target", metavar="MODEL.py[:NAME]")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the model spec here (.yaml or .json).")
@click.option("--device", default="cpu", show_default=True, help="The device to measure on: cpu, cuda, cuda:1 …")
@click.option(
    "--steps",
    type=click.IntRange(1, 100_000),
    help="Steps after warm-up.  [default: until the time of a step is steady, 5 s at most]",
)
@click.option(
    "--times",
    type=click.Choice(["measured", "computed", "scaled"]),
    default="measured",
    show_default=True,
    help="Measure on the device; compute for another one; or measure on a known GPU and scale to another one.",
)
@click.option(
    "--batch-sizes",
    metavar="N,N,N...",
    help="Also time passes with these numbers of examples (three or more), for uneven shares of the batch.",
)
@click.option("--cuts", is_flag=True, help="Also find where the model can be cut into stages.")
@click.option("--rate", metavar="NAME", help="The device of computed or scaled times.  [default: NVIDIA T4]")
@click.option(
    "--precision",
    type=click.Choice(["full", "mixed"]),
    default="full",
    show_default=True,
    help="The precision of computed or scaled times: float32 with torch's settings of TF32, or autocast's.",
)
@click.option(
    "--input",
    "dataset",
    metavar="FILE.py:NAME",
    help="Also measure the input: a dataset with __len__ and __getitem__, read as autosync.loader reads it.",
)
@click.option(
    "--input-settings",
    type=click.Path(path_type=Path),
    metavar="SETTINGS",
    help="How it is read: a file of input settings, a strategy or a bundle.",
)
@force_option
@json_option
def profile(
    target: str,
    *,
    output: Path | None,
    device: str,
    steps: int | None,
    times: Literal["measured", "computed", "scaled"],
    rate: str | None,
    precision: Literal["full", "mixed"],
    batch_sizes: str | None,
    cuts: bool,
    dataset: str | None,
    input_settings: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Run a task's model for a few steps and show its variables, their order and the times of a step.

    MODEL.py has a function task() that returns an autosync.Task; MODEL.py:NAME uses another function of the file. With
    --output the model spec is written to a file, which other commands accept in place of the task.
    """
    from autosync.specs.model_file import dump_model, save_model
    from autosync.specs.profile.known_devices import DEFAULT_DEVICE, known_device, training_rate
    from autosync.specs.task_file import load_task

    if rate is not None and times == "measured":
        raise click.UsageError("--rate is for computed or scaled times; add --times computed")
    if precision != "full" and times == "measured":
        raise click.UsageError("--precision is for computed or scaled times; a measured task trains as it is")
    refuse_overwrite(output, force=force)
    # Mistakes are told before torch is loaded.
    training_rate(known_device(rate or DEFAULT_DEVICE), precision)
    task = load_task(target)
    _check_input(task, dataset, input_settings)
    # This import loads torch, so it waits until everything else has been checked.
    from autosync.specs.profile.run import profile as run_profile

    model = run_profile(
        task,
        device=device,
        steps=steps,
        times=times,
        rate=rate or DEFAULT_DEVICE,
        precision=precision,
        batch_sizes=() if batch_sizes is None else _numbers(batch_sizes),
        cuts=cuts,
        progress=note,
    )
    told = ""
    if dataset is not None or task.reads_dataset:
        model, told = _with_input(model, task, dataset, input_settings)
    if output is not None:
        save_model(model, output)
        note(f"wrote {output}")
    if as_json:
        print_json(dump_model(model))
    else:
        print_text(describe(model) + told)


def _check_input(task: Task, dataset: str | None, settings: Path | None) -> None:
    if dataset is not None and task.reads_dataset:
        raise click.UsageError("the task has a dataset of its own, which is measured; leave out --input")
    if settings is not None and dataset is None and not task.reads_dataset:
        raise click.UsageError("--input-settings says how a dataset is read; add --input FILE.py:NAME")


def _with_input(model: ModelSpec, task: Task, dataset: str | None, given: Path | None) -> tuple[ModelSpec, str]:
    """Return the model with what an example of a dataset costs, and what was seen of its input in words.

    Without a name, the dataset is that of the task.
    """
    from autosync.inputs.load import load_dataset
    from autosync.inputs.profiled_input import profile_input
    from autosync.inputs.settings import load_settings
    from autosync.inputs.task_input import with_input
    from autosync.specs.input_settings import InputSettings

    note("input")
    settings = None if given is None else load_settings(given)
    if dataset is None:
        model, found = with_input(model, task, settings)
        return model, f"\n{found.in_words()}\n"
    found = profile_input(load_dataset(dataset), model, settings or InputSettings())
    return replace(model, input=found.cost), f"\n{found.in_words()}\n"


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(one) for one in text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no list of numbers (write 8,16,32)", param_hint="--batch-sizes"
        ) from None


def describe(model: ModelSpec) -> str:
    """Return a model spec for users: the variables to synchronise, and the compute time of a step."""
    head = (
        f"{model.name}: {len(model.variables)} variables, {model.num_parameters:,} parameters, "
        f"{units.format_size(model.num_bytes)} of gradients, batch size {model.batch_size}"
    )
    lines = [head, "", *_table([("kind", "variables", "bytes", ""), *_kind_rows(model)]), *_use_lines(model), ""]
    lines.append(f"{model.timeline.source} times of one step on {model.timeline.device}")
    lines += _table([("", "time", "slowest module"), *_time_rows(model)])
    if model.timeline.sizes:
        told = [f"{one.num_examples} in {units.format_time(one.seconds)}" for one in model.timeline.sizes]
        lines.append(f"forward and backward by examples: {', '.join(told)}")
    lines += [*_trust_lines(model), *_cut_lines(model), *_graph_lines(model), ""]
    lines.append(f"optimizer: {_optimizer_words(model)}")
    if model.timeline.note:
        lines.append(f"times: {model.timeline.note}")
    lines += [f"note: {text}" for text in model.notes]
    return "\n".join(lines)


def _use_lines(model: ModelSpec) -> list[str]:
    """Return lines about parameters that not every step uses."""
    from autosync.strategy.wording import count

    sample = model.use_sample
    if sample is None:
        return []
    sizes = {variable.name: variable.num_bytes for variable in model.variables if variable.name in sample.names}
    means = {
        ranks: units.format_size(sum(size * sample.share([name], ranks) for name, size in sizes.items()))
        for ranks in (1, 8)
    }
    alike = ", and ranks use much the same in a step" if sample.is_shared else ""
    varying = f"{units.format_size(sum(sizes.values()))} in {count(len(sample.groups), 'group')}"
    return [
        f"not every step uses all parameters: of {varying}, one rank uses {means[1]} on average, 8 ranks {means[8]}",
        f"({len(sample.steps)} steps of {sample.num_ranks} ranks were sampled{alike})",
    ]


def _cut_lines(model: ModelSpec) -> list[str]:
    """Return lines about stages: what an even division into four would carry, or why there is none."""
    from autosync.specs.cuts import even_stages

    timeline = model.timeline
    if timeline.uncut:
        return [f"the model cannot be cut into stages: {timeline.uncut}"]
    if not timeline.cuts:
        return []
    lines = [f"cuts: {len(timeline.cuts)} places"]
    stages = even_stages(timeline, min(4, len(timeline.cuts) + 1))
    if stages is not None and stages.cuts:
        places = ", ".join(timeline.forward[cut.before].module for cut in stages.cuts)
        sizes = ", ".join(units.format_size(cut.num_bytes + cut.constant_bytes) for cut in stages.cuts)
        lines.append(
            f"{len(stages.seconds)} stages: cut before {places}; {sizes} cross; the slowest takes {stages.excess:.0%} "
            "longer than an even one"
        )
    if timeline.mixes:
        return [*lines, f"stages are not searched: {timeline.mixes}"]
    return [*lines, _weights_line(model)]


def _weights_line(model: ModelSpec) -> str:
    """Return a line about the gradients of weights that split backward passes leave for later."""
    from autosync.strategy.stage_compute import weight_seconds

    timeline = model.timeline
    later = units.format_time(sum(weight_seconds(model, model.batch_size)))
    whole = units.format_time(sum(one.seconds for one in timeline.backward))
    source = f"{timeline.source}" if timeline.splits is not None else "taken for half of that of linear layers"
    return f"gradients of weights that can come later: {later} of {whole} of backward pass ({source})"


def _graph_lines(model: ModelSpec) -> list[str]:
    """Return lines about a model whose graph changes: its examples, their batching policies and their deals."""
    graphs = model.graphs
    if graphs is None:
        return []
    own, fastest = graphs.policies[0], min(graphs.policies, key=lambda one: one.seconds)
    own_time, best_time = units.format_time(own.seconds), units.format_time(fastest.seconds)
    lines = [
        f"an example has {_range(graphs.vertices)} vertices, and {_range(graphs.depths)} levels",
        f"batching: {own.name} takes {own_time}, and {fastest.name}, the fastest, {best_time}",
    ]
    if graphs.undealt:
        return [*lines, f"examples cannot be dealt by cost: {graphs.undealt}"]
    told = [f"{one.by_count:.2f} and {one.by_cost:.2f} on {one.num_workers} ranks" for one in graphs.dealings]
    return [*lines, f"the slowest rank takes so many times as long, dealt by count and by cost: {'; '.join(told)}"]


def _range(numbers: Sequence[int]) -> str:
    """Return a spread in words, of the least, the median, 90 % and the most."""
    least, median, high, most = numbers
    return f"{least} to {most} (median {median}, 90 %: {high})"


def _trust_lines(model: ModelSpec) -> list[str]:
    """Return lines about how far measured times can be trusted."""
    from autosync.specs.profile.quality import interval_in_words, profile_warning

    words = interval_in_words(model)
    return [line for line in (None if words is None else f"the whole step: {words}", profile_warning(model)) if line]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with aligned columns: the first on the left, numbers on the right, and the last unpadded."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        middle = [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        lines.append("  ".join((row[0].ljust(widths[0]), *middle, row[-1])).rstrip())
    return lines


def _kind_rows(model: ModelSpec) -> list[tuple[str, str, str, str]]:
    rows = []
    for kind in ("dense", "linear", "embedding"):
        variables = [variable for variable in model.variables if variable.kind == kind]
        if not variables:
            continue
        more = ""
        if kind == "embedding":
            touched = sum(v.touched_rows or 0 for v in variables)
            more = f"{touched:,.0f} of {sum(v.shape[0] for v in variables):,} rows touched a step"
        num_bytes = sum(variable.num_bytes for variable in variables)
        rows.append((kind, str(len(variables)), units.format_size(num_bytes), more))
    for reason in ("frozen", "unused", "empty"):
        count = sum(parameter.reason == reason for parameter in model.untrained)
        if count:
            rows.append((reason, str(count), "", "not synchronised"))
    return rows


def _time_rows(model: ModelSpec) -> list[tuple[str, str, str]]:
    timeline = model.timeline
    parts = (("forward", timeline.forward), ("backward", timeline.backward), ("update", timeline.optimizer))
    rows = [(name, units.format_time(sum(s.seconds for s in part)), _slowest(part)) for name, part in parts]
    return [*rows, ("whole step", units.format_time(model.step_seconds), "")]


def _slowest(segments: Sequence[Segment]) -> str:
    if not segments:
        return ""
    slowest = max(segments, key=lambda segment: segment.seconds)
    return f"{slowest.module} ({units.format_time(slowest.seconds)})"


def _update_words(optimizer: OptimizerSpec) -> str:
    if optimizer.elementwise:
        return "elementwise"
    whole = "each updated whole" if optimizer.updates_apart else "all updated together, after backward"
    return f"not elementwise (its variables are {whole})"


def _optimizer_words(model: ModelSpec) -> str:
    optimizer = model.optimizer
    return ", ".join(
        [
            optimizer.name,
            _update_words(optimizer),
            "takes sparse gradients" if optimizer.sparse else "dense gradients only",
            f"{optimizer.state_slots} state tensors a parameter",
        ]
    )
