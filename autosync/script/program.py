"""Runs a script or a module in this process, as `python` would."""

from __future__ import annotations

import io
import os
import runpy
import sys
import types
from collections.abc import Sequence
from pathlib import Path

from autosync.errors import InputError
from autosync.script.group_end import unhurried_group_end
from autosync.script.process_group import checked_process_group
from autosync.script.started_ranks import refused_ranks


class MainProgram:
    """The user's program: `train.py ARGS` or `-m MODULE ARGS`."""

    def __init__(self, command: Sequence[str]) -> None:
        self._is_module = command[0] == "-m"
        self._words = list(command[1:] if self._is_module else command)
        self._source = b""
        self._path = Path()
        if not self._words:
            raise InputError("-m without a module", rule="-m MODULE ARGS, or train.py ARGS")
        if not self._is_module:
            self._source = _read(Path(self.name))
            self._path = Path(self.name).absolute()

    @property
    def name(self) -> str:
        """The script's path, or the module's name."""
        return self._words[0]

    def run(self) -> None:
        """Run it as the main program of the process. Its exceptions are passed on."""
        sys.argv = list(self._words)
        if not sys.flags.safe_path:
            # Python has put the folder of `-m autosync.run` there.
            del sys.path[0]
        if not os.environ.get("PYTHONSAFEPATH"):
            # Only the variable counts as the user's wish: the launcher may have added the option -P.
            sys.path.insert(0, str(Path.cwd() if self._is_module else self._path.resolve().parent))
        with checked_process_group(), unhurried_group_end(), refused_ranks():
            self._execute()

    def _execute(self) -> None:
        if self._is_module:
            runpy.run_module(self.name, run_name="__main__", alter_sys=True)
            return
        main = types.ModuleType("__main__")
        # As python does: the script may change the working directory, and then look for files beside itself.
        path = str(self._path)
        main.__dict__.update({"__file__": path, "__builtins__": __builtins__, "__cached__": None})
        # The module stays: pickle and functions that run at exit look names up in it.
        sys.modules["__main__"] = main
        # Without the future statements of this module: annotations of the script are what it wrote.
        exec(compile(self._source, path, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - the user's own script


def _read(path: Path) -> bytes:
    try:
        with io.open_code(str(path.absolute())) as file:
            return file.read()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}", rule="a Python file, or -m MODULE, to be trained by the bundle"
        ) from error
