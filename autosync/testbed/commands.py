"""Calls of `ip` and `tc` as data, and a runner for them.

One call takes many command lines, because a call for each line would take a hundred times as long. Without root, calls
run inside the user namespace that owns the testbed.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from typing import Any, Literal

from autosync.errors import OperationError

TIMEOUT_SECONDS = 60.0

# Messages of the kernel about missing modules, and their meaning.
_MISSING = {
    "Specified qdisc kind is unknown": "the kernel has no token bucket filter (module sch_tbf)",
    "Unknown device type": "the kernel has no veth or bridge interfaces (modules veth, bridge)",
    "Operation not permitted": "it takes the capabilities CAP_NET_ADMIN and CAP_SYS_ADMIN",
}


def tool_environment() -> dict[str, str]:
    """Return the environment for `ip` and `tc`: PATH has the folders of system tools, and messages are in English."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return {**os.environ, "PATH": path, "LC_ALL": "C"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """The lines of one call of `ip` or `tc`, in a namespace if given. With `may_fail`, failed lines are passed over."""

    tool: Literal["ip", "tc"]
    lines: tuple[str, ...]
    namespace: str | None = None
    may_fail: bool = False

    def __str__(self) -> str:
        """Format the commands as a person would type them."""
        inside = f"-n {self.namespace} " if self.namespace else ""
        return "\n".join(f"{self.tool} {inside}{line}" for line in self.lines)

    def command(self) -> tuple[str, ...]:
        inside = ("-n", self.namespace) if self.namespace else ()
        return (self.tool, *inside, *(("-force",) if self.may_fail else ()), "-batch", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """Runs calls. `enter` is the command that leads to the namespaces.

    Child processes inherit the descriptor `lock`, so if this process is killed, the lock is held until they have ended.
    """

    enter: tuple[str, ...] = ()
    lock: int | None = None

    def run(self, call: ToolCall) -> None:
        result = self._call(call.command(), "\n".join(call.lines) + "\n")
        if result.returncode and not call.may_fail:
            raise OperationError(_explain(call, result.stderr))

    def query(self, *command: str) -> list[dict[str, Any]] | None:
        """Return the answer of `ip -json ...`, or None if the object does not exist."""
        result = self._call(command)
        if result.returncode:
            return None
        return [item for item in json.loads(result.stdout or "[]") if item]

    def _call(self, command: tuple[str, ...], stdin: str = "") -> subprocess.CompletedProcess[str]:
        full = (*self.enter, *command)
        try:
            return subprocess.run(
                full,
                input=stdin,
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT_SECONDS,
                env=tool_environment(),
                pass_fds=() if self.lock is None else (self.lock,),
            )
        except subprocess.TimeoutExpired as error:
            raise OperationError(f"{command[0]} did not answer within {TIMEOUT_SECONDS:g} s") from error
        except OSError as error:
            raise OperationError(f"{full[0]} cannot be run: {error.strerror}") from error


def _explain(call: ToolCall, stderr: str) -> str:
    said = " ".join(stderr.split())
    reason = next((meaning for words, meaning in _MISSING.items() if words in said), "")
    where = f" in {call.namespace}" if call.namespace else ""
    return f"{call.tool}{where} failed: {said}" + (f" ({reason})" if reason else "")
