"""`autosync tune`: find the fastest strategy for a task on a cluster, and prove it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from autosync.cli.consent_prompt import TOLD, consent_of, fields_of, lines_of, trust_option
from autosync.cli.dry_run import describe_launch, dry_run_option, launch_fields
from autosync.cli.operands import CLUSTER_HELP, tell_of_idle_gpus
from autosync.cli.options import ScriptCommand, positive_seconds, script_of_command, seed_option, some_seconds
from autosync.cli.output import force_option, json_option, note, print_json, print_text, refuse_overwrite
from autosync.cli.profile_warnings import profile_warning_lines
from autosync.cli.progress import Reporter
from autosync.cli.tune_loop import OF_LOOPS, check_loop_options, names_loop, tune_loop
from autosync.cli.tune_script import OF_SCRIPTS, check_script_options, tune_script
from autosync.cli.tuning_view import TuningView
from autosync.cli.verdict import describe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autosync.script_tuning.tune_script import Then
    from autosync.search.candidates import Candidate
    from autosync.search.tuning_plan import TuningPlan
    from autosync.specs.consent import FileAction

NUM_SHOWN = 10
"""The number of strategies to be tried that a dry run shows."""

BEGUN_WITH = (
    "--proposer",
    "--simulator",
    "--prior",
    "--allow",
    "--target",
    "--trial-timeout",
    "--seed",
    "--study",
)
"""The options that a resumed study cannot change."""


def _classes(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[str, ...]:
    words = tuple(word.strip() for word in (text or "").split(",") if word.strip())
    for word in words:
        if word not in {"lossy", "stale"}:
            raise click.BadParameter(f"{word!r} is no class to allow (lossy, stale)")
    return words


@click.command(
    cls=ScriptCommand,
    epilog="""\b
Examples:
  autosync tune model.py --cluster cluster.yaml -o best.yaml
  autosync tune --cluster cluster.yaml -o best.yaml -- train.py --epochs 3
  autosync tune --cluster cluster.yaml --keep-training -- train.py --epochs 3
  autosync tune --cluster cluster.yaml --retune -- train.py --epochs 3
  autosync tune examples/transformer.py --cluster local-2 --trials 8 --budget 2min
  autosync tune resnet50 --cluster 4-hosts --budget 10min
  autosync tune --resume resnet50-4-hosts-20260131-120000 --trials 100
  autosync tune resnet50 --cluster 4-hosts --study team --storage postgresql://db.example/tuning
  autosync tune --replay resnet50-4-hosts-20260131-120000 --proposer evolution
  autosync tune model.py --cluster cluster.yaml --target ddp
  autosync tune model.py --cluster cluster.yaml --allow lossy
  autosync tune model.py --cluster cluster.yaml --prior lab/records
  autosync tune resnet50 --cluster 4-hosts --dry-run
  autosync tune examples/loops/matrix_factorisation.py --cluster local-2 --epochs 5 -o schedule.yaml""",
)
@click.argument("model", metavar="[MODEL | LOOP.py | -- TRAIN.py ARGS]", required=False)
@click.option("--cluster", help=CLUSTER_HELP)
@click.option(
    "--keep-training/--stop",
    "keep_training",
    default=False,
    help="When TRAIN.py is tuned, go on by the winner to its end, or end it there.  [default: stop]",
)
@click.option("--retune", is_flag=True, help="Keep training, and tune again when steps have become slower for good.")
@click.option(
    "--trials",
    "num_trials",
    type=click.IntRange(0, 100_000),
    help="Strategies to try; for a loop, schedules to prove.  [default: the predicted are proved at once, then as many "
    "are tried as are worth their time, 12 at most for TRAIN.py; for LOOP.py 4]",
)
@click.option(
    "--training",
    "training_seconds",
    callback=positive_seconds,
    metavar="TIME",
    help="Without --trials, try more while that is expected to save its own time in a training this long.  "
    "[default: 10h]",
)
@click.option("--budget", callback=some_seconds, metavar="TIME", help="Begin no trial after this time, such as 10min.")
@click.option(
    "--patience",
    type=click.IntRange(0, 100_000),
    help="Stop after this number of trials without a gain; 0 for no limit.  [default: 20; for a script 8]",
)
@click.option(
    "--proposer",
    metavar="NAME",
    help="The proposer: learned, evolution, mcmc, nsga2, random, tpe or an installed one.  [default: learned]",
)
@click.option(
    "--simulator",
    metavar="NAME",
    help="The simulator that predicts step times for the proposer.  [default: learned; in a replay timeline]",
)
@click.option(
    "--prior",
    metavar="RECORDS",
    help="Records of other models and clusters to learn from.  [default: shipped, if no simulator is named]",
)
@click.option(
    "--allow", callback=_classes, metavar="CLASSES", help="Also try lossy or stale strategies, which change training."
)
@click.option(
    "--target",
    default="autosync",
    show_default=True,
    type=click.Choice(["autosync", "ddp"]),
    help="The engine that runs strategies: ours, or stock DDP with fitting arguments.",
)
@click.option(
    "--effort",
    type=click.Choice(["normal", "quick"]),
    help="How long each strategy is measured.  [default: normal]",
)
@click.option(
    "--trial-timeout",
    default="2min",
    show_default=True,
    callback=positive_seconds,
    metavar="TIME",
    help="A trial fails if the ranks take longer than this for one step.",
)
@click.option(
    "--jobs", type=click.IntRange(1), help="Cores of this machine that predict while ranks wait.  [default: all]"
)
@click.option(
    "--goal", type=float, metavar="LOSS", help="The loss that a loop has to reach.  [default: the serial one]"
)
@click.option(
    "--epochs",
    "num_epochs",
    type=click.IntRange(1),
    help="Epochs of a loop. Without --goal, the goal is the serial program's loss after them.  [default: 10]",
)
@seed_option
@click.option("--study", metavar="NAME", help="The study's name.  [default: model, cluster and time]")
@click.option("--storage", metavar="URL", help="An Optuna storage that several tuners share.  [default: a journal]")
@click.option("--resume", metavar="STUDY", help="Continue a study with its own MODEL and cluster.")
@click.option("--replay", metavar="RECORDS", help="Search the recorded trials of a study or dataset; no cluster runs.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the winner's bundle here too.")
@force_option
@trust_option
@dry_run_option
@json_option
def tune(
    model: str | None,
    *,
    cluster: str | None,
    keep_training: bool,
    retune: bool,
    budget: float | None,
    effort: str | None,
    trial_timeout: float,
    study: str | None,
    storage: str | None,
    resume: str | None,
    replay: str | None,
    output: Path | None,
    force: bool,
    trust: bool,
    dry_run: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Find the fastest strategy for training on a cluster, and prove it against stock DDP.

    MODEL is a task, FILE.py[:NAME] with a function task() that returns an autosync.Task. Or it is a model spec (a file
    or the name of a shipped one), whose compute is replayed; SPEC@x4 replays it four times slower. TRAIN.py is an
    unchanged script that wraps its model in DistributedDataParallel: it runs once, and the trials are steps of its own
    training. The trials, the winner (best.yaml) and summary.json are kept in autosync-studies/NAME.

    LOOP.py[:NAME] is a serial loop: a file with a function under @autosync.loop and without task(). Its schedules are
    compared by the time to a loss, and -o writes the fastest for autosync loop run --schedule.

    If another user began the study to resume, autosync asks before it uses the task, the cluster and the storage that
    the study's folder names; without a terminal, --trust is needed.
    """
    refuse_overwrite(output, force=force)
    if script := script_of_command(click.get_current_context()):
        named = check_script_options(model, cluster, _is_given)
        settings = {**{key: how[key] for key in OF_SCRIPTS}, "budget_seconds": budget}
        then = _then(keep_training=keep_training, retune=retune)
        tune_script(script, cluster=named, settings=settings, study=study, output=output, then=then, as_json=as_json)
        return
    of_loops = {name: how.pop(name) for name in ("goal", "num_epochs")}
    if model is not None and names_loop(model):
        named = check_loop_options(cluster, _is_given)
        tune_loop(model, named, {**how, **of_loops, "budget_seconds": budget}, output=output, as_json=as_json)
        return
    _check_sources(model, cluster, resume=resume, replay=replay)
    of: dict[str, Any] = {
        "model": model,
        "cluster": cluster,
        "study": study,
        "storage": storage,
        "resume": resume,
        "replay": replay,
        "consent": consent_of(trust=trust),
    }
    how |= {"budget_seconds": budget, "trial_timeout_seconds": trial_timeout}
    if dry_run:
        _dry_run(of, how, effort=effort, as_json=as_json)
    else:
        _tune(of, how, effort=effort, output=output, as_json=as_json)


def _tune(
    of: Mapping[str, Any], how: Mapping[str, Any], *, effort: str | None, output: Path | None, as_json: bool
) -> None:
    """Tune, and print the summary or the verdict."""
    # This import loads torch and optuna, so it waits until the command line has been checked.
    from autosync.report.page import write_report
    from autosync.search.measurement_effort import EFFORTS
    from autosync.search.shown_summary import shown
    from autosync.search.study_folder import StudyFolder
    from autosync.search.tune import tune as run_tune
    from autosync.specs.cluster_file import load_cluster
    from autosync.specs.task_file import is_task

    if of["cluster"] is not None and of["replay"] is None and is_task(of["model"]):
        tell_of_idle_gpus(load_cluster(of["cluster"]))
    with TuningView() as progress:
        tuned = run_tune(
            **of, **how, effort=None if effort is None else EFFORTS[effort], output=output, progress=progress
        )
    if as_json:
        print_json(tuned.summary)
    else:
        print_text(describe(shown(tuned.summary), tuned.folder, bundle=output))
    # The page comes last, so that an error in it does not cost the verdict.
    page = write_report(StudyFolder(tuned.folder), [*tuned.records, *tuned.baselines])
    note(f"wrote {page}")


def _check_sources(model: str | None, cluster: str | None, *, resume: str | None, replay: str | None) -> None:
    """Raise unless the options fit together. A new study needs MODEL and --cluster; a resumed study has its own."""
    if _is_given("--keep-training"):
        raise click.UsageError("--keep-training and --stop are for a script after --")
    if _is_given("--retune"):
        raise click.UsageError("--retune is for a script after --")
    if others := [name for name in OF_LOOPS if _is_given(name)]:
        raise click.UsageError(f"only a loop, a function under @autosync.loop, has {' and '.join(others)}")
    if resume is not None and replay is not None:
        raise click.UsageError("a study is resumed (--resume) or another is replayed (--replay), not both")
    if resume is not None and (model is not None or cluster is not None):
        raise click.UsageError("the study that is resumed has its model and its cluster: leave out MODEL and --cluster")
    if resume is not None and (kept := [name for name in BEGUN_WITH if _is_given(name)]):
        raise click.UsageError(
            f"the study that is resumed keeps what it was begun with: leave out {' and '.join(kept)}"
        )
    if resume is None and replay is None and (model is None or cluster is None):
        raise click.UsageError("Missing argument 'MODEL'." if model is None else "Missing option '--cluster'.")


def _then(*, keep_training: bool, retune: bool) -> Then:
    """Return what a script does after its proof."""
    if not retune:
        return "keep_training" if keep_training else "stop"
    if _is_given("--keep-training") and not keep_training:
        raise click.UsageError("--stop ends the script, and --retune goes on with it: leave out one")
    return "retune"


def _is_given(option: str) -> bool:
    """Return whether an option is given on the command line."""
    context = click.get_current_context()
    name = next(one.name for one in context.command.params if option in one.opts)
    assert name is not None, "options have names"
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _dry_run(of: Mapping[str, Any], how: Mapping[str, Any], *, effort: str | None, as_json: bool) -> None:
    """Show what would be started and tried first."""
    from autosync.search.measurement_effort import EFFORTS
    from autosync.search.planning import plan_tuning

    # Predictions do not depend on the number of cores.
    settings = {name: value for name, value in how.items() if name != "jobs"}
    settings["effort"] = None if effort is None else EFFORTS[effort]
    with Reporter() as progress:
        plan = plan_tuning(**of, settings=settings, is_dry=True, progress=progress)
        first = plan.first(NUM_SHOWN)
    if as_json:
        print_json(_plan_fields(plan, first))
    else:
        print_text(_describe_plan(plan, first))


def _plan_fields(plan: TuningPlan, first: Sequence[Candidate]) -> dict[str, object]:
    from autosync.specs.profile.quality import profile_fields

    return {
        "schema": "autosync.tuning-plan/1",
        "model": plan.model.name,
        "cluster": plan.cluster.name,
        "profile": profile_fields(plan.model),
        "study": str(plan.folder.path),
        "launch": None if plan.request is None else launch_fields(plan.cluster, plan.request),
        "num_trials": plan.settings.num_trials,
        "training_seconds": plan.settings.training_seconds,
        **({"named": fields_of(asked)} if (asked := _asked(plan)) else {}),
        "first": [
            {
                "name": candidate.name,
                "origin": candidate.origin,
                "strategy_id": None if candidate.strategy is None else candidate.strategy_id,
                "in_words": candidate.in_words(plan.model),
            }
            for candidate in first
        ],
    }


def _describe_plan(plan: TuningPlan, first: Sequence[Candidate]) -> str:
    lines = [] if plan.request is None else [*describe_launch(plan.cluster, plan.request), ""]
    if first:
        lines.append(f"{_what_becomes_of_them(plan, len(first))}:")
        lines += [f"  {candidate.name}: {candidate.in_words(plan.model)}" for candidate in first]
        lines.append("")
    elif not plan.is_new:
        lines += ["would be tried: what waits in the study, then what comes of the trials that it has", ""]
    if asked := _asked(plan):
        lines += [TOLD, *(f"  {line}" for line in lines_of(asked)), ""]
    return "\n".join([*lines, *profile_warning_lines(plan.model), f"study: {plan.folder.path}"])


def _asked(plan: TuningPlan) -> list[FileAction]:
    """Return the actions that the user has not consented to."""
    from autosync.specs.consent import unconfirmed

    return [] if plan.is_new else unconfirmed(plan.named)


def _what_becomes_of_them(plan: TuningPlan, num_shown: int) -> str:
    trials = plan.settings.num_trials
    if plan.settings.training_seconds is not None:
        return "would be measured in turn and proved, before any other trial"
    if trials == 0:
        return "would be measured beside stock DDP, without a trial"
    return f"would be tried, first of {trials}" if trials > num_shown else "would be tried, in this order"
