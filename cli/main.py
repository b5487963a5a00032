"""The entry of the command line: the table of commands, and the handling of errors.

Commands are imported when they are called, so `autosync --help` takes no longer than Python and click. Errors become
lines on stderr and an exit code: 2 for mistakes in the user's input, 1 for operations that failed, 130 for an
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
    """The place of a command (`module:attribute`) and its line in the list of commands."""

    place: str
    summary: str


COMMANDS: Mapping[str, Entry] = {
    "init": Entry("autosync.cli.init:init", "Draft a cluster file, check it, and offer to measure the cluster."),
    "profile": Entry("autosync.cli.profile:profile", "Run a model and write its model spec."),
    "cluster": Entry("autosync.cli.cluster:cluster", "Show, check or measure a cluster, or show its costs."),
    "testbed": Entry("autosync.cli.testbed:testbed", "Emulate a cluster on this machine."),
    "strategy": Entry("autosync.cli.strategy:strategy", "Build, show, check and compare strategies."),
    "simulate": Entry("autosync.cli.simulate:simulate", "Predict how long a step takes."),
    "predict": Entry("autosync.cli.predict:predict", "Predict how training scales to more nodes."),
    "compare": Entry("autosync.cli.compare:compare", "Measure strategies in turn and say which is faster."),
    "draw": Entry("autosync.cli.draw:draw", "Draw plans and timelines as SVG."),
    "doctor": Entry("autosync.cli.doctor:doctor", "Say why a training step takes as long as it does."),
    "tune": Entry("autosync.cli.tune:tune", "Find the fastest strategy for a model on a cluster."),
    "studies": Entry("autosync.cli.studies:studies", "List the tuning runs with their results."),
    "show": Entry("autosync.cli.show:show", "Print the verdict of a tuning run again."),
    "report": Entry("autosync.cli.report:report", "Write an HTML page about tuning runs."),
    "launch": Entry("autosync.cli.launch:launch", "Run a training script on a cluster with a bundle."),
    "loop": Entry("autosync.cli.loop:loop", "Analyse a serial loop, and run it on several ranks."),
    "graph": Entry("autosync.cli.graph:graph", "Batch a model whose graph differs from example to example."),
    "input": Entry("autosync.cli.input:input_group", "Tune the settings of an input pipeline; look at its storage."),
    "emit": Entry("autosync.cli.emit:emit", "Write a strategy as settings of stock DDP."),
    "serve": Entry("autosync.cli.serve:serve", "Serve parameters on a node that does not train."),
    "export": Entry("autosync.cli.export:export", "Write the records of studies as parquet, csv or jsonl."),
    "dataset": Entry("autosync.cli.dataset:dataset", "Count, check, import, merge and split records."),
}

_SECONDS_TO_LEAVE = 0.05
"""The wait before an interruption is sent again, so that the code that swallowed the first one can return."""


class LazyGroup(click.Group):
    """A group that imports a command when it is called, and lists all commands without importing any."""

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
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks (also allowed after the command).")
def cli() -> None:
    """Find the fastest way to synchronise gradients for your model on your cluster.

    `autosync help COMMAND` explains a command.
    """


def main() -> None:
    """Run the console script."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal cannot show must not cause a failure.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:], _noted_interrupts()))


def _noted_interrupts() -> Sequence[int]:
    """Install a handler for Ctrl-C, and return a list that grows with every Ctrl-C.

    The handler also raises KeyboardInterrupt as usual. Inside another package, this exception may become a different
    error (pydantic raises that a schema cannot be built), or disappear, in which case the signal is sent again.
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
    """Send an interruption again if it was raised where no code could catch it.

    Python calls pydantic in places that cannot raise. A Ctrl-C there would be lost, and the command would continue. A
    thread sends the signal a moment later, because here it would be lost again.
    """
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        again = threading.Timer(_SECONDS_TO_LEAVE, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(unraisable)


def run(arguments: Sequence[str], interrupts: Sequence[int] = ()) -> int:
    """Run one command line and return the exit code. With `interrupts`, an unknown error counts as an interruption."""
    arguments, debug = _without_debug(arguments)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
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
    """Open standard streams that the caller has closed, so that none of our files gets their number.

    Otherwise printed text would go into that file. Printing to a closed stdout fails, as elsewhere; messages to a
    closed stderr are lost.
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
    """Flush stdout. If this fails, close stdout and raise an error that names it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        with contextlib.suppress(io.UnsupportedOperation):
            # Otherwise the interpreter would try again at exit, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OSError(error.errno, error.strerror, "standard output") from error


def _explained(error: BaseException, *, debug: bool, is_interrupted: bool) -> tuple[int, list[str]]:
    """Return the exit code of an error and the lines that explain it to the user."""
    match error:
        case click.UsageError():
            return 2, _usage_lines(error)
        case click.ClickException():
            return 1, [f"error: {error.format_message()}"]
        case InputError():
            examples = dict.fromkeys(problem.example for problem in error.problems if problem.example)
            return 2, [*(f"error: {problem}" for problem in error.problems), *examples]
        case AutosyncError():
            return 1, [f"error: {error}"]
        case OSError(filename=str() | os.PathLike() as filename):
            # The system refused a file: a full disk, or a folder without write permission.
            return 1, [f"error: {printable(str(filename))}: {error.strerror}"]
        case OSError() if disk_errors.is_full_error(error):
            return 1, [f"error: {error.strerror}{disk_errors.full_disk_cause(error)}"]
        case _ if is_interrupted or isinstance(error, KeyboardInterrupt):
            return 130, ["interrupted"]
        case _:
            return 1, [f"error: {_unexpected(error, debug=debug)}"]


def _unexpected(error: BaseException, *, debug: bool) -> str:
    """Return the message about an unexpected error: a missing package, or a bug of ours."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if package not in ("", "autosync"):
        return f"the Python package {package} is not installed; install it for {sys.executable}"
    what = " ".join(f"{type(error).__name__}: {error}".split())
    hint = "" if debug else "; --debug shows the traceback to report with it"
    return f"this is a bug in autosync: {what}{hint}"


def _invoke(arguments: list[str]) -> int:
    """Invoke a command as `click.Command.main` does, but without its error handling.

    That would treat every broken pipe as stdout's.
    """
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
    """Remove `--debug` at any position before `--`, after which the arguments of another program begin."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    ours = [argument for argument in arguments[:end] if argument != "--debug"]
    return [*ours, *arguments[end:]], len(ours) < end


def _stdout_is_open() -> bool:
    """Return whether stdout still has a reader. If not, redirect it, so that Python does not complain at exit."""
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
    """Return the lines for a mistake in the arguments, in the same form as for all other mistakes."""
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
