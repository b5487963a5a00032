"""The entry of the command line: the list of commands, the exit codes, and the common form of all errors."""

import errno
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from autosync.cli import main
from autosync.errors import InputError, OperationError, Problem, TaskError

Raise = Callable[[BaseException], None]


def _autosync(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    code = "import sys; from autosync.cli.main import main; sys.argv[0] = 'autosync'; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=60, **options
    )


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Raise:
    """Makes `autosync fail` a command that raises the given error."""

    def arrange(error: BaseException) -> None:
        @click.command()
        @click.argument("rest", nargs=-1)
        def fail(rest: tuple[str, ...]) -> None:
            click.echo(f"rest={' '.join(rest)}")
            raise error

        monkeypatch.setitem(sys.modules, "failing_command", types.SimpleNamespace(fail=fail))
        monkeypatch.setattr(main, "COMMANDS", {**main.COMMANDS, "fail": main.Entry("failing_command:fail", "Fail.")})

    return arrange


def test_help_lists_every_command_and_imports_none(capsys: pytest.CaptureFixture[str]) -> None:
    before = set(sys.modules)
    assert main.run(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, entry in main.COMMANDS.items():
        assert f"  {name} " in shown
        assert entry.summary in shown
    assert not {name for name in set(sys.modules) - before if name.startswith("autosync.cli.")}


@pytest.mark.parametrize("name", list(main.COMMANDS))
def test_every_listed_command_exists_and_its_help_shows_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([name, "--help"]) == 0
    command = main.cli.get_command(click.Context(main.cli), name)
    assert command is not None
    if isinstance(command, click.Group):
        for sub_command in command.list_commands(click.Context(command)):
            capsys.readouterr()
            assert main.run([name, sub_command, "--help"]) == 0
            assert f"autosync {name} {sub_command} " in capsys.readouterr().out.split("Example")[1]
    else:
        assert f"autosync {name}" in capsys.readouterr().out.split("Example")[1]


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        (["help"], ["--help"]),
        (["help", "tune"], ["tune", "--help"]),
        (["help", "strategy", "build"], ["strategy", "build", "--help"]),
    ],
)
def test_help_is_a_word_too(asked: list[str], meant: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(meant) == 0
    shown = capsys.readouterr().out
    assert main.run(asked) == 0
    assert capsys.readouterr().out == shown


def test_help_of_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["help", "tunee"]) == 2
    assert "did you mean 'tune'?" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == "autosync, version 0.1.0\n"


def test_no_arguments_show_the_help_on_stderr() -> None:
    result = _autosync()
    assert (result.returncode, result.stdout) == (2, "")
    assert "Usage: autosync [OPTIONS] COMMAND" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["starategy"], "error: unknown command 'starategy' (known: "),
        (["strategy", "shwo", "s.yaml"], "); did you mean 'show'?"),
        (["strategy", "show", "s.yaml", "--moddel", "m"], "error: unknown option '--moddel' (known: "),
        (["--versoin"], "); did you mean '--version'?"),
        (["strategy", "show"], "error: missing argument 'S' (usage: autosync strategy show [OPTIONS] S); see "),
        (["strategy", "show", "s.yaml", "--model"], "error: option '--model' requires an argument ("),
        (["strategy", "show", "s.yaml", "extra"], "error: got unexpected extra argument (extra) (usage: "),
    ],
)
def test_usage_mistakes_look_like_all_others(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("error: ")
    assert line in captured.err


def test_each_mistake_of_the_input_has_its_line(raising: Raise, capsys: pytest.CaptureFixture[str]) -> None:
    problem = Problem(what="no such axis", rule="0 or 1", path=("partitions", "w"), hint="use 0", file="s.yaml", line=7)
    raising(InputError([problem, Problem(what="unknown key", rule="known: a, b", file="s.yaml", line=9)]))
    assert main.run(["fail"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: s.yaml:7: partitions.w: no such axis (0 or 1); use 0",
        "error: s.yaml:9: unknown key (known: a, b)",
    ]


def test_what_could_not_be_done_is_exit_1(raising: Raise, capsys: pytest.CaptureFixture[str]) -> None:
    raising(OperationError("node-3 does not answer"))
    assert main.run(["fail"]) == 1
    assert capsys.readouterr().err == "error: node-3 does not answer\n"


def test_a_file_that_the_system_refuses_is_exit_1(raising: Raise, capsys: pytest.CaptureFixture[str]) -> None:
    raising(PermissionError(13, "Permission denied", "/results/best.yaml"))
    assert main.run(["fail"]) == 1
    assert capsys.readouterr().err == "error: /results/best.yaml: Permission denied\n"


def test_a_disk_without_room_is_no_bug(raising: Raise, capsys: pytest.CaptureFixture[str]) -> None:
    # As a write has it, which names no file.
    raising(OSError(errno.ENOSPC, "No space left on device"))
    assert main.run(["fail"]) == 1
    assert capsys.readouterr().err == "error: No space left on device\n"


def test_a_click_exception_is_exit_1(raising: Raise, capsys: pytest.CaptureFixture[str]) -> None:
    raising(click.ClickException("the terminal is too small"))
    assert main.run(["fail"]) == 1
    assert capsys.readouterr().err == "error: the terminal is too small\n"


def test_a_command_may_choose_its_exit_code(raising: Raise) -> None:
    raising(click.exceptions.Exit(3))
    assert main.run(["fail"]) == 3


def test_an_interruption_is_exit_130(raising: Raise, capsys: pytest.CaptureFixture[str]) -> None:
    raising(KeyboardInterrupt())
    assert main.run(["fail"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


_MAKES_AN_ERROR_OF_IT = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt as interrupt:
    raise ValueError("the schema cannot be built") from interrupt
"""
_SWALLOWS_IT = """
import signal
import time
class Package:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
Package()
time.sleep(30)
raise ValueError("nothing came of the interruption")
"""


@pytest.mark.parametrize("package", [_MAKES_AN_ERROR_OF_IT, _SWALLOWS_IT], ids=["another error", "nothing"])
def test_an_interruption_stays_one_whatever_a_package_makes_of_it(package: str, tmp_path: Path) -> None:
    (tmp_path / "package.py").write_text(package, "utf-8")
    code = """
import signal
from autosync.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main.COMMANDS = {"fail": main.Entry("package:fail", "Fail.")}
main.main()
"""
    command = [sys.executable, "-c", code, "fail"]
    # By name, for the folder that a process starts in may be no place to import from (PYTHONSAFEPATH).
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")


def test_a_bug_is_called_one_without_a_traceback(raising: Raise, capsys: pytest.CaptureFixture[str]) -> None:
    raising(ZeroDivisionError("division\nby zero"))
    assert main.run(["fail"]) == 1
    expected = "error: this is a bug in autosync: ZeroDivisionError: division by zero; "
    assert capsys.readouterr().err == f"{expected}--debug shows the traceback to report with it\n"


def test_a_missing_package_is_named_and_is_no_bug(raising: Raise, capsys: pytest.CaptureFixture[str]) -> None:
    raising(ModuleNotFoundError("No module named 'xgboost.core'", name="xgboost.core"))
    assert main.run(["fail"]) == 1
    assert capsys.readouterr().err == (
        f"error: the Python package xgboost is not installed; install it for {sys.executable}\n"
    )
    raising(ModuleNotFoundError("No module named 'autosync.gone'", name="autosync.gone"))
    assert main.run(["fail"]) == 1
    assert "this is a bug in autosync" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--debug", "fail"], ["fail", "--debug"]])
def test_debug_shows_the_traceback_and_its_cause(
    arguments: list[str], raising: Raise, capsys: pytest.CaptureFixture[str]
) -> None:
    error = TaskError("the batch function failed", rule="it returns a batch")
    error.__cause__ = KeyError("a mistake of the user")
    raising(error)
    assert main.run(arguments) == 2
    shown = capsys.readouterr().err
    assert "Traceback (most recent call last)" in shown
    assert "KeyError: 'a mistake of the user'" in shown
    assert shown.splitlines()[-1] == "error: the batch function failed (it returns a batch)"


def test_debug_after_two_dashes_belongs_to_another_program(raising: Raise, capsys: pytest.CaptureFixture[str]) -> None:
    raising(OperationError("no"))
    assert main.run(["fail", "--", "train.py", "--debug"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "rest=train.py --debug\n"
    assert "Traceback" not in captured.err


def test_a_broken_pipe_of_another_stream_is_told(raising: Raise, capsys: pytest.CaptureFixture[str]) -> None:
    raising(BrokenPipeError(32, "Broken pipe"))
    assert main.run(["fail"]) == 1
    assert "BrokenPipeError" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    code = "import sys; from autosync.cli.main import main; sys.argv = ['autosync', '--help']; main()"
    try:
        result = subprocess.run(
            [sys.executable, "-c", code], stdout=write_end, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    finally:
        os.close(write_end)
    assert (result.returncode, result.stderr) == (1, "")


def test_names_that_the_terminal_cannot_show_are_no_error() -> None:
    result = _autosync("strätegy", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert result.returncode == 2
    assert r"unknown command 'str\xe4tegy'" in result.stderr


def test_shell_completion_knows_the_commands() -> None:
    wanted = {"_AUTOSYNC_COMPLETE": "bash_complete", "COMP_WORDS": "autosync st", "COMP_CWORD": "1"}
    result = _autosync(env=os.environ | wanted)
    assert result.stdout == "plain,strategy\nplain,studies\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documented_completion_is_a_script(shell: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    [line] = [line for line in page.splitlines() if line.startswith(f"| {shell} |")]
    assignment = re.search(r"_AUTOSYNC_COMPLETE=(\w+) autosync", line)
    assert assignment is not None
    result = _autosync(env=os.environ | {"_AUTOSYNC_COMPLETE": assignment[1]})
    assert result.returncode == 0, result.stderr
    assert f"_AUTOSYNC_COMPLETE={shell}_complete" in result.stdout


def test_the_documented_completion_of_bash_works(tmp_path: Path) -> None:
    program = tmp_path / "autosync"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m autosync.cli "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    line = re.search(r"^\| bash \|.*`(eval .*)` \|$", page, re.MULTILINE)
    assert line is not None
    ended = subprocess.run(
        ["bash", "-c", f"{line[1]} && complete -p autosync"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "_autosync_completion autosync" in ended.stdout


@pytest.mark.parametrize(
    ("closing", "code", "words"),
    [
        (">/dev/full", 1, "error: No space left on device"),
        (">&-", 1, "error: standard output: Bad file descriptor"),
        (">&- 2>&-", 1, ""),
        ("<&- 2>&-", 0, ""),
        ("<&-", 0, ""),
    ],
)
def test_what_cannot_be_printed_is_told(closing: str, code: int, words: str) -> None:
    command = f"{sys.executable} -m autosync.cli --help {closing}"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr.strip()) == (code, words)
