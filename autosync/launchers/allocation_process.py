"""A process that keeps machines as long as its stdin is open: Slurm's salloc, or an allocation holder.

Its stdin closes when this process ends, for any reason. So the machines are given back even if this process is killed.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence

END_SECONDS = 10.0
"""The time that the process has to give the machines back; after SIGTERM it has as much again."""
_MAX_LINES = 100


class AllocationProcess:
    """A process that keeps machines until its stdin closes. `hear` is called with each line of its stderr."""

    def __init__(self, command: Sequence[str], *, hear: Callable[[str], None] = lambda _line: None) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C must not reach the process directly.
            start_new_session=True,
        )
        assert self.process.stdin is not None, "it was asked for"
        assert self.process.stdout is not None, "it was asked for"
        assert self.process.stderr is not None, "it was asked for"
        self.stdin, self.stdout, self._stderr = self.process.stdin, self.process.stdout, self.process.stderr
        self._hear = hear
        self._said: deque[str] = deque(maxlen=_MAX_LINES)
        self._listener = threading.Thread(target=self._listen, name="autosync-allocation", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        for line in self._stderr:
            text = line.decode("utf-8", "replace").strip()
            if text:
                self._said.append(text)
                self._hear(text)

    def last_words(self) -> list[str]:
        """Wait for the process's end and return its last lines on stderr, or its exit code if there are none."""
        self.process.wait(END_SECONDS)
        self._listener.join(1.0)
        return list(self._said) or [f"exit code {self.process.returncode}"]

    def close(self) -> None:
        """Give the machines back. Afterwards the process has ended, even if this call is interrupted."""
        with contextlib.suppress(OSError):
            self.stdin.close()
        try:
            self._await_end()
            if self.process.poll() is None:
                # The process may not read stdin yet, because it waits in a queue.
                self.process.terminate()
                self._await_end()
        finally:
            self.process.kill()
            self.process.wait()
            self._listener.join(1.0)
            self.stdout.close()
            self._stderr.close()

    def _await_end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
