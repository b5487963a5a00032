"""The command line's front door: the table of commands, and what each kind of error becomes.

Commands are imported when they are called, so `autosync --help` costs as little as Python and click do. Errors leave
here as lines on stderr and an exit code: 2 for what the user handed in, 1 for what could not be done, 130 for an
interruption.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

import click

from autosync import __version__, disk_errors
from autosync.errors import AutosyncError, InputError, Problem, UnknownNameError, printable


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command lives (`module:attribute`) and the line that the listing shows of it."""

    place: str
    summary: str


COMMANDS: Mapping[str, Entry] = {
    "profile": Entry("autosync.cli.profile:profile", "Run a model and write its model spec."),
    "cluster": Entry("autosync.cli.cluster:cluster", "Show a cluster, or measure it."),
    "testbed": Entry("autosync.cli.testbed:testbed", "Emulate a cluster on this machine."),
    "strategy": Entry("autosync.cli.strategy:strategy", "Build, show, check and compare strategies."),
    "simulate": Entry("autosync.cli.simulate:simulate", "Predict how long a step takes."),
    "compare": Entry("autosync.cli.compare:compare", "Measure strategies in turn and say which is faster."),
    "draw": Entry("autosync.cli.draw:draw", "Draw plans and timelines as SVG."),
    "tune": Entry("autosync.cli.tune:tune", "Find the fastest strategy for a model on a cluster."),
    "launch": Entry("autosync.cli.launch:launch", "Run a training script on a cluster, under a bundle."),
    "emit": Entry("autosync.cli.emit:emit", "Write a strategy as settings of stock DDP."),
    "serve": Entry("autosync.cli.serve:serve", "Serve parameters on a node that does not train."),
    "export": Entry("autosync.cli.export:export", "Write the records of studies as parquet, csv or jsonl."),
    "dataset": Entry("autosync.cli.dataset:dataset", "Count, check and merge records."),
}

_SECONDS_TO_LEAVE = 0.05
"""How long what swallowed a Ctrl-C is given to be left behind before it is sent once more."""


class LazyGroup(click.Group):
    """A group that imports a command when it is called and lists all without importing any."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), entry.place
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: autosync tune model.py --cluster cluster.yaml -o best.yaml",
)
@click.version_option(__version__, prog_name="autosync")
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks (may stand after the command too).")
def cli() -> None:
    """Find the fastest way to synchronise gradients for your model on your cluster."""


def main() -> None:
    """The console script."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal cannot show is no reason to fail.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:], _noted_interrupts()))


def _noted_interrupts() -> Sequence[int]:
    """Grows with every Ctrl-C, which goes on to what it does anyway.

    What it reaches inside another package may leave that as an error of another kind: pydantic makes of it a schema
    that cannot be built. Or it does not leave at all, and comes again.
    """
    interrupts: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, note)
        sys.unraisablehook = _interrupt_again
    return interrupts


def _interrupt_again(unraisable: sys.UnraisableHookArgs) -> None:
    """What Python calls with an error that nobody could catch: an interruption among them is sent once more.

    pydantic asks Python for names where it can raise nothing: a Ctrl-C there was dropped, and the command ran on. From
    a thread and a moment later, since here too it would reach nobody.
    """
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        again = threading.Timer(_SECONDS_TO_LEAVE, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(unraisable)


def run(arguments: Sequence[str], interrupts: Sequence[int] = ()) -> int:
    """Run one command line; the exit code. A bug while there are `interrupts` is none."""
    arguments, debug = _without_debug(arguments)
    try:
        try:
            return _invoke(arguments)
        finally:
            _flush()
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001 - the last stop: whatever comes here is told in a line
        if isinstance(error, BrokenPipeError) and not _stdout_is_open():
            return 1
        if debug:
            traceback.print_exception(error)
        code, lines = _explained(error, debug=debug, is_interrupted=bool(interrupts))
        for line in lines:
            print("\n".join(map(printable, line.split("\n"))), file=sys.stderr)
        return code


def _open_streams() -> None:
    """Open what the caller has closed: else a file of ours would take its number, and what is printed go into it.

    What is printed to a closed stdout fails, as it does elsewhere; what is said on a closed stderr is lost.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for the whole process
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for the whole process


def _flush() -> None:
    """Bring what was printed on its way; where that fails it is named, and given up."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        with contextlib.suppress(io.UnsupportedOperation):
            # Else the interpreter would try again at its end, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OSError(error.errno, error.strerror, "standard output") from error


def _explained(error: BaseException, *, debug: bool, is_interrupted: bool) -> tuple[int, list[str]]:
    """The exit code of an error and the lines that tell the user of it."""
    match error:
        case click.UsageError():
            return 2, _usage_lines(error)
        case click.ClickException():
            return 1, [f"error: {error.format_message()}"]
        case InputError():
            return 2, [f"error: {problem}" for problem in error.problems]
        case AutosyncError():
            return 1, [f"error: {error}"]
        case OSError(filename=str() | os.PathLike() as filename):
            # The world said no to a file: a full disk, a folder that may not be written.
            return 1, [f"error: {printable(str(filename))}: {error.strerror}"]
        case OSError() if disk_errors.is_full_error(error):
            return 1, [f"error: {error.strerror}{disk_errors.full_disk_cause(error)}"]
        case _ if is_interrupted or isinstance(error, KeyboardInterrupt):
            return 130, ["interrupted"]
        case _:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            hint = "" if debug else "; --debug shows the traceback to report with it"
            return 1, [f"error: this is a bug in autosync: {what}{hint}"]


def _invoke(arguments: list[str]) -> int:
    """What `click.Command.main` does, but not its error handling: that takes any broken pipe for stdout's."""
    instruction = os.environ.get("_AUTOSYNC_COMPLETE")
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "autosync", "_AUTOSYNC_COMPLETE", instruction)
    try:
        with cli.make_context("autosync", arguments) as context:
            cli.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    return 0


def _without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """`--debug` counts wherever it stands, save after `--`: there the arguments of another program begin."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    ours = [argument for argument in arguments[:end] if argument != "--debug"]
    return [*ours, *arguments[end:]], len(ours) < end


def _stdout_is_open() -> bool:
    """Whether stdout still has a reader; if not, it is turned away so that nothing more is said about it at exit."""
    try:
        descriptor = sys.stdout.fileno()
    except io.UnsupportedOperation:
        return True
    poll = select.poll()
    poll.register(descriptor, 0)
    if not any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
        return True
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return False


def _usage_lines(error: click.UsageError) -> list[str]:
    """A mistake in the arguments, in the form of all other mistakes."""
    context = error.ctx
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return [error.format_message()]
    if context is None:
        return [f"error: {_usage_problem(error, 'the usage of the command', 'autosync --help')}"]
    command = context.command
    if isinstance(error, click.exceptions.NoSuchCommand) and isinstance(command, click.Group):
        unknown = UnknownNameError("command", error.command_name, command.list_commands(context))
        return [f"error: {problem}" for problem in unknown.problems]
    if isinstance(error, click.NoSuchOption):
        known = [name for parameter in command.get_params(context) for name in parameter.opts if name.startswith("-")]
        unknown = UnknownNameError("option", error.option_name, known)
        return [f"error: {problem}" for problem in unknown.problems]
    usage = " ".join(context.get_usage().split()).replace("Usage:", "usage:", 1)
    return [f"error: {_usage_problem(error, usage, f'{context.command_path} --help')}"]


def _usage_problem(error: click.UsageError, rule: str, help_command: str) -> Problem:
    what = error.format_message().rstrip(".")
    return Problem(what=what[:1].lower() + what[1:], rule=rule, hint=f"see {help_command}")
