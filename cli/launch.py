"""`autosync launch`: run a user's training with a bundle on all ranks of a cluster."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autosync.cli.consent_prompt import TOLD, consent_of, fields_of, lines_of, trust_option
from autosync.cli.dry_run import describe_launch, launch_fields
from autosync.cli.output import json_option, note, print_json, print_text

if TYPE_CHECKING:
    from autosync.launchers.request import LaunchRequest, TrainingScript
    from autosync.launchers.script_run import ScriptOutcome, ScriptRun
    from autosync.specs.cluster import ClusterSpec
    from autosync.specs.consent import FileAction
    from autosync.strategy.bundle import Bundle

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="""\b
Examples:
  autosync launch best.yaml --cluster cluster.yaml -- train.py --epochs 3
  autosync launch generator.yaml --also discriminator.yaml -- gan.py
  autosync launch best.yaml --env WANDB_API_KEY -- -m package.train
  autosync launch best.yaml --dry-run -- train.py""",
)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- TRAIN.py ARGS")
@click.option(
    "--also",
    "others",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="BUNDLE",
    help="The bundle of another model that the script trains.",
)
@click.option("--cluster", metavar="CLUSTER.yaml", help="Where to train.  [default: the cluster of the bundle]")
@click.option("--env", "settings", multiple=True, metavar="NAME[=VALUE]", help="A variable that all ranks have.")
@click.option(
    "--master-port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="The port where ranks meet the first worker.  [default: 29500, or a free port under the local launcher]",
)
@click.option(
    "--logs", type=click.Path(path_type=Path), help="Keep what ranks write here.  [default: only if it fails]"
)
@trust_option
@click.option("--dry-run", is_flag=True, help="Print what would be started; start nothing.")
@json_option
def launch(
    bundle: Path,
    command: tuple[str, ...],
    *,
    others: tuple[Path, ...],
    cluster: str | None,
    settings: tuple[str, ...],
    master_port: int | None,
    logs: Path | None,
    trust: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run a training script on all ranks of a cluster, with the strategy of BUNDLE.

    The script may be unchanged and wrap its model in DistributedDataParallel. Or it may call autosync.parallelize(
    model, optimizer), which finds the bundle. Ranks have the environment variables that torchrun sets. Nodes that only
    serve run `autosync serve`. The output of the ranks is shown line by line with node and rank. The exit code is that
    of the first rank that fails. Signals are passed on to the ranks. Nothing is restarted.

    If BUNDLE does not come from this user's own tuning, autosync asks before it uses the programs, images and machines
    that BUNDLE names; without a terminal, --trust is needed. A cluster named by --cluster needs no consent.
    """
    if as_json and not dry_run:
        raise click.UsageError("--json goes with --dry-run: without it the output is the script's")
    from autosync.specs.consent import cluster_actions, require

    bundles = (bundle, *others)
    spec, script = _script(bundles, command, cluster, settings, master_port)
    named = cluster_actions(spec, file=str(bundle)) if cluster is None else []
    if dry_run:
        _dry_run(spec, script, logs or Path("LOGS"), named, as_json=as_json)
        return
    require(named, consent_of(trust=trust))
    ended = _run(spec, script, logs)
    if ended.code:
        # Not an error of autosync: the script has printed its own messages, and the exit code is the script's.
        raise click.exceptions.Exit(ended.code)


def _script(
    paths: Sequence[Path], command: Sequence[str], cluster: str | None, settings: Sequence[str], port: int | None
) -> tuple[ClusterSpec, TrainingScript]:
    from autosync.launchers.script_run import passed_on_settings, script_behind_python, script_of
    from autosync.specs.cluster_file import load_cluster
    from autosync.strategy.bundle import load_bundle

    bundles = [load_bundle(path) for path in paths]
    spec = bundles[0].cluster if cluster is None else load_cluster(cluster, is_run=True)
    for bundle in bundles:
        bundle.check(bundle.model, spec)
    try:
        environment = passed_on_settings(os.environ, settings)
    except KeyError as error:
        raise click.UsageError(f"--env {error.args[0]}: no such variable is set here: say NAME=VALUE") from None
    if behind := script_behind_python(command):
        note(
            f"{command[0]} runs as it is: autosync.parallelize in it uses the bundle, DistributedDataParallel does "
            f"not; an unchanged script needs: -- {shlex.join(behind)}"
        )
    return spec, script_of(
        command,
        cluster=spec,
        bundles=paths,
        has_servers=_have_servers(bundles),
        environment=environment,
        port=port,
    )


def _have_servers(bundles: Sequence[Bundle]) -> bool:
    """Return whether nodes that only serve have work under one of the bundles."""
    from autosync.errors import InputError
    from autosync.plan.lowering import lower

    needed = [bool(lower(one.strategy, one.model, one.cluster).needed_servers) for one in bundles]
    if len(bundles) > 1 and any(needed):
        raise InputError("--also with a bundle that needs server nodes", rule="a server node serves one bundle")
    return any(needed)


def _dry_run(
    spec: ClusterSpec, script: TrainingScript, logs: Path, named: Sequence[FileAction], *, as_json: bool
) -> None:
    from autosync.launchers.script_run import plan_script
    from autosync.specs.consent import unconfirmed

    _, request = plan_script(spec, script, logs)
    asked = unconfirmed(named)
    if as_json:
        print_json({**launch_fields(spec, request, token=False), **({"named": fields_of(asked)} if asked else {})})
        return
    lines = describe_launch(spec, request, token=False)
    if asked:
        lines += ["", TOLD, *(f"  {line}" for line in lines_of(asked))]
    print_text("\n".join(lines))


def _run(spec: ClusterSpec, script: TrainingScript, logs: Path | None) -> ScriptOutcome:
    from autosync.launchers.script_run import ScriptRun

    folder = Path(tempfile.mkdtemp(prefix="autosync-launch-")) if logs is None else logs
    if logs is not None:
        _refuse_old_logs(logs)
    display = _Display(folder)
    training = ScriptRun(spec, script, folder, show=display.show)

    def started(request: LaunchRequest) -> None:
        num_nodes = len({process.node for process in request.processes})
        _tell(f"{spec.name}: {len(request.processes)} ranks on {num_nodes} nodes run (launcher {spec.launcher})")

    is_wanted = True
    try:
        with _signals_passed_on(training):
            ended = training.run(started=started)
        is_wanted = logs is not None or ended.code != 0 or display.has_failed
        for words in ended.words:
            _tell(f"error: {words}")
        return ended
    finally:
        if is_wanted and any(log.stat().st_size for log in folder.glob("*.log")):
            _tell(f"what ranks wrote: {folder}")
        elif logs is None:
            shutil.rmtree(folder, ignore_errors=True)


def _refuse_old_logs(folder: Path) -> None:
    from autosync.errors import InputError

    if any(folder.glob("rank-*.log")):
        raise InputError(f"{folder} has the logs of another launch", rule="each launch has a folder of its own")


class _Display:
    """Shows the output of ranks on stdout as long as stdout can be written. The training does not depend on that."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.has_failed = False

    def show(self, text: str) -> None:
        if self.has_failed:
            return
        try:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
        except OSError as error:
            self.has_failed = True
            with contextlib.suppress(io.UnsupportedOperation):
                # Python would otherwise write the rest of its buffer later, and fail again.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            _tell(f"standard output: {error.strerror}: the training goes on, and what ranks write is in {self._folder}")


def _tell(text: str) -> None:
    """Print a line on stderr, unless the terminal is gone."""
    with contextlib.suppress(OSError):
        note(text)


@contextlib.contextmanager
def _signals_passed_on(training: ScriptRun) -> Iterator[None]:
    """While the ranks run, pass signals to this process on to them. Signals that the caller ignores stay ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, frame: object) -> None:
        if not training.is_running:
            # No rank is running yet.
            earlier = before[number]
            if callable(earlier):
                earlier(number, frame)
            raise SystemExit(128 + number)
        training.ask_to_end(number)

    found = {one: signal.getsignal(one) for one in _PASSED_ON}
    before: dict[int, Callable[..., object] | int | None] = {
        one: handler for one, handler in found.items() if handler is not signal.SIG_IGN
    }
    try:
        for one in before:
            signal.signal(one, pass_on)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
