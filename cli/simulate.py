"""`autosync simulate`: predict step times without running a strategy."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autosync.cli.consent_prompt import consent_of
from autosync.cli.operands import context_of, context_options, strategy_for, strategy_operand
from autosync.cli.output import force_option, json_option, note, print_json, print_text, refuse_overwrite
from autosync.cli.profile_warnings import profile_warning_lines
from autosync.errors import InputError, Problem
from autosync.units import format_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autosync.plan.bound_terms import Bound
    from autosync.simulators.interface import Prediction
    from autosync.simulators.timeline.explanation import Explanation
    from autosync.specs.cluster import ClusterSpec
    from autosync.specs.model import ModelSpec
    from autosync.strategy.representation import Strategy

DEFAULT_SIMULATOR = "timeline"
CONTEXT_RULE = "the time of a step depends on its model and cluster, which a bundle alone knows"
_NUM_REASONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The predictions by the names of strategies, the bounds, and the shares of bytes that travel on average.

    `limit` is the bound without stages, and `divided` that of strategies with stages, if any is legal. `travelled` is
    empty if every step uses all parameters.
    """

    model: ModelSpec
    cluster: ClusterSpec
    simulator: str
    strategies: Mapping[str, Strategy]
    predictions: Mapping[str, Prediction]
    limit: Bound
    divided: Bound | None
    travelled: Mapping[str, float]

    def ranked(self) -> list[tuple[str, Prediction]]:
        """Return the predictions, the fastest first; equals keep their order."""
        return sorted(self.predictions.items(), key=lambda one: one[1].seconds)


@click.command(
    epilog="""\b
Examples:
  autosync simulate best.yaml
  autosync simulate ddp ddp_cap ps_load_balanced --model resnet50 --cluster 8-hosts
  autosync simulate best.yaml --simulator analytical --json
  autosync simulate best.yaml --trace step.json"""
)
@click.argument("names", metavar="S ...", nargs=-1, required=True)
@context_options
@click.option(
    "--simulator", default=DEFAULT_SIMULATOR, show_default=True, metavar="NAME", help="The simulator that predicts."
)
@click.option(
    "--prior",
    metavar="RECORDS",
    help="Records of other models and clusters to learn from, or shipped; for learned and other simulators that learn.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="OUT.json",
    help="Write the timeline's steps of one strategy as a Chrome trace.",
)
@force_option
@json_option
def simulate(
    *,
    names: tuple[str, ...],
    model_target: str | None,
    cluster_target: str | None,
    simulator: str,
    prior: str | None,
    trace: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Predict how long a step takes with each strategy S, the fastest first.

    S: strategy files, bundles or names of presets. A bundle contains its model and cluster; for the others, name them.
    The more accurate the cluster file, the more accurate the prediction: see `autosync cluster probe`.
    """
    from autosync.plan.bound import bound
    from autosync.plan.bound_terms import rates_of
    from autosync.plan.stage_bound import stage_bound
    from autosync.simulators.catalogue import SIMULATORS, open_simulator
    from autosync.simulators.compile_notice import compiling_is_told

    refuse_overwrite(trace, force=force)
    if trace is not None and len(names) > 1:
        raise InputError(f"one trace of {len(names)} strategies", rule="--trace is of one strategy")
    SIMULATORS.get(simulator)  # refuses a misspelt name before a task is profiled
    records = _records_of(prior, simulator)
    strategies, model, cluster = _strategies(names, model_target, cluster_target)
    with compiling_is_told(note, meanwhile=True):
        predictor = open_simulator(simulator, model, cluster, prior=records)
        predictions = dict(zip(strategies, predictor.predict(list(strategies.values())), strict=True))
        explanation = None
        is_divided = any(one.stages for one in strategies.values())
        if trace is not None and is_divided:
            raise InputError("a trace of a strategy with stages", rule="--trace shows messages, and not passes")
        if trace is not None or (len(strategies) == 1 and simulator == DEFAULT_SIMULATOR and not is_divided):
            explanation = _explanation(next(iter(strategies.values())), model, cluster, trace)
    found = Simulation(
        model=model,
        cluster=cluster,
        simulator=predictor.name,
        strategies=strategies,
        predictions=predictions,
        limit=bound(model, cluster, rates=rates_of(cluster)),
        divided=stage_bound(model, cluster, rates=rates_of(cluster)),
        travelled=_travelled(strategies, model, cluster),
    )
    if as_json:
        print_json(fields(found, explanation))
    else:
        print_text(describe(found, explanation))


def _strategies(
    names: Sequence[str], model_target: str | None, cluster_target: str | None
) -> tuple[dict[str, Strategy], ModelSpec, ClusterSpec]:
    """Return the strategies by name, their model and their cluster; raise all mistakes at once."""
    _check_names(names)
    context = context_of(model_target, cluster_target)
    if context is None:
        if len(names) == 1:
            operand = strategy_operand(names[0], None, None)
            strategy, model, cluster = operand.in_context(CONTEXT_RULE)
            return {names[0]: strategy}, model, cluster
        raise InputError("no model and no cluster are named", rule=CONTEXT_RULE, hint="give --model and --cluster")
    model, cluster = context
    found: dict[str, Strategy] = {}
    problems: list[Problem] = []
    for name in names:
        try:
            found[name] = strategy_for(name, model, cluster)
        except InputError as error:
            problems.extend(error.problems)
    if problems:
        raise InputError(problems)
    return found, model, cluster


def _records_of(prior: str | None, simulator: str) -> Path | None:
    """Return the path of a prior's records. Refuse a prior that the simulator cannot learn from."""
    from autosync.datasets.studies import storage_named
    from autosync.search.prior import check_prior, prior_path
    from autosync.specs.consent import require

    if prior is not None:
        check_prior(prior, simulator)
    path = prior_path(prior)
    if path is not None:
        require(storage_named(path), consent_of(trust=None))
    return path


def _travelled(strategies: Mapping[str, Strategy], model: ModelSpec, cluster: ClusterSpec) -> dict[str, float]:
    """Return the share of each strategy's bytes that travels on average."""
    from autosync.plan.lowering import lower
    from autosync.plan.traffic import amortised_traffic
    from autosync.runtime.varying.expected_bytes import expected_traffic

    if model.use_sample is None:
        return {}
    found = {}
    for name, one in strategies.items():
        plan = lower(one, model, cluster)
        most = float(amortised_traffic(plan, cluster).links.sum())
        found[name] = float(expected_traffic(plan, model, cluster).links.sum()) / most if most else 1.0
    return found


def _check_names(names: Sequence[str]) -> None:
    """Refuse names that are neither files nor presets, and names that occur twice, before any other work."""
    from autosync.strategy.names import check_strategy_names

    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError([Problem(what=f"{name} is named twice", rule="a strategy once") for name in twice])
    check_strategy_names(names)


def _explanation(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec, trace: Path | None) -> Explanation | None:
    """Return the timeline's explanation of the waits in a step. Also write its trace if `trace` is given."""
    from autosync import jsonio
    from autosync.simulators.timeline.scene_builder import MOST_MESSAGES, MOST_RANKS
    from autosync.simulators.timeline.simulator import TimelineSimulator

    timeline, reason = TimelineSimulator(model, cluster), None
    if len(cluster.ranks) > MOST_RANKS:
        rule = f"every rank is played on clusters of up to {MOST_RANKS} ranks"
        reason = InputError(f"no trace of {len(cluster.ranks)} ranks", rule=rule)
    elif timeline.are_affordable([strategy], every_rank=True) == [False]:
        rule = f"every message is played of plans with up to {MOST_MESSAGES:,} messages a step"
        reason = InputError("no trace of a plan with more messages", rule=rule)
    if reason is not None:
        if trace is not None:
            raise reason
        return None
    if trace is not None:
        jsonio.write_json(trace, {"traceEvents": timeline.trace(strategy)})
        note(f"wrote {trace}: chrome://tracing and ui.perfetto.dev open it")
    return timeline.explain(strategy)


def fields(found: Simulation, explanation: Explanation | None = None) -> dict[str, Any]:
    """Return the predictions for programs."""
    from autosync.documents import to_plain
    from autosync.specs.compute_pace import compute_seconds
    from autosync.specs.profile.quality import profile_fields
    from autosync.strategy.canonical import strategy_id

    model, cluster = found.model, found.cluster
    return {
        "schema": "autosync.simulation/1",
        "model": model.name,
        "cluster": cluster.name,
        "simulator": found.simulator,
        "probed": cluster.calibration is not None,
        "compute_seconds": compute_seconds(model, cluster),
        "profile": profile_fields(model),
        "bound": _bound_fields(found.limit),
        **({} if found.divided is None else {"bound_with_stages": _bound_fields(found.divided)}),
        "predictions": [
            {
                "name": name,
                "strategy_id": strategy_id(found.strategies[name], model, cluster),
                "classes": sorted(found.strategies[name].classes),
                "seconds": prediction.seconds,
                "spread": prediction.spread,
                "exposed_seconds": exposed_seconds(prediction, found.strategies[name], model, cluster),
                **({"travelled_share": found.travelled[name]} if found.travelled else {}),
            }
            for name, prediction in found.ranked()
        ],
        "explanation": to_plain(explanation) if explanation is not None else None,
    }


def _bound_fields(limit: Bound) -> dict[str, Any]:
    return {"seconds": limit.seconds, "reason": str(limit.largest)}


def describe(found: Simulation, explanation: Explanation | None = None) -> str:
    """Return the predictions for users: a table, and the bound."""
    from autosync.specs.compute_pace import compute_seconds
    from autosync.strategy.describe import in_words
    from autosync.strategy.wording import format_table

    ranked = found.ranked()
    fastest = ranked[0][1].seconds
    rows = [
        (
            name,
            f"{prediction.seconds * 1e3:.2f}",
            f"{prediction.spread:.0%}" if prediction.spread else "",
            f"{prediction.seconds / fastest:.3f}" if len(ranked) > 1 and fastest else "",
            format_time(exposed_seconds(prediction, found.strategies[name], found.model, found.cluster)),
            f"{found.travelled[name]:.0%}" if found.travelled else "",
            in_words(found.strategies[name], found.model),
        )
        for name, prediction in ranked
    ]
    numbers = ("ms a step", "give or take", "of the fastest", "exposed", "of its bytes")
    table = format_table(rows, header=("", *numbers, "what it does"), right=numbers)
    lines = [f"{found.model.name} on {found.cluster.name}, predicted by {found.simulator}:", "", table, ""]
    if explanation is not None:
        lines += [*_in_words(explanation), ""]
    if found.travelled:
        lines.append("Not every step uses all parameters: times and bytes are means over steps.")
    compute = compute_seconds(found.model, found.cluster)
    lines.append(f"Compute alone takes {format_time(compute)} a step{_on_slowest(found.cluster)}.")
    lines += profile_warning_lines(found.model)
    if found.divided is None:
        lines.append(f"No exact strategy can be faster than {found.limit.largest}.")
    else:
        lines.append(f"No exact strategy without stages can be faster than {found.limit.largest}.")
        lines.append(f"With stages, none can be faster than {found.divided.largest}.")
    if found.cluster.calibration is None:
        lines.append("The cluster was not probed: its links are taken to be as fast as its file says.")
    return "\n".join(lines)


def _in_words(explanation: Explanation) -> list[str]:
    """Return the waits of a step, longest first, and the busy shares of links."""
    from autosync.specs.links import busy_in_words

    waits: dict[str, float] = defaultdict(float)
    for one in explanation.critical_path:
        waits[one.name] += one.seconds
    longest = sorted(waits.items(), key=lambda wait: -wait[1])[:_NUM_REASONS]
    told = f"{format_time(explanation.seconds)} from one step's end to the next one's, of which"
    if explanation.average_seconds is not None:
        told = f"A step that averages takes {format_time(explanation.average_seconds)}, of which"
    # The path may begin before the step does.
    whole = sum(waits.values())
    lines = [told, *(f"  {seconds / whole:4.0%} {name}" for name, seconds in longest if whole)]
    if explanation.average_seconds is not None:
        lines.append(f"Not every step averages: the mean of all steps is {format_time(explanation.seconds)}.")
    busiest = [busy_in_words(one.link, one.busy_share) for one in explanation.links[:_NUM_REASONS]]
    return [*lines, *([f"Busiest links: {'; '.join(busiest)}."] if busiest else [])]


def _on_slowest(cluster: ClusterSpec) -> str:
    return " on the slowest device" if cluster.is_uneven else ""


def exposed_seconds(prediction: Prediction, strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> float:
    """Return the part of a step that the compute of the strategy's busiest rank alone does not explain."""
    from autosync.strategy.stage_compute import strategy_compute_seconds

    return max(0.0, prediction.seconds - strategy_compute_seconds(strategy, model, cluster))
