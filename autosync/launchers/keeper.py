"""A process that keeps machines for as long as its stdin is open: Slurm's salloc, or a holder of ours.

Its stdin ends when this process does, whatever ends it; so machines are given back when whoever launched is killed.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence

END_SECONDS = 10.0
"""How long it may take to give back what it keeps, and once more when it is asked to end."""
_MAX_LINES = 100


class Keeper:
    """Such a process, and what it says on stderr, of which `hear` is told each line."""

    def __init__(self, command: Sequence[str], *, hear: Callable[[str], None] = lambda _line: None) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C is ours to pass on.
            start_new_session=True,
        )
        assert self.process.stdin is not None, "it was asked for"
        assert self.process.stdout is not None, "it was asked for"
        assert self.process.stderr is not None, "it was asked for"
        self.stdin, self.stdout, self._stderr = self.process.stdin, self.process.stdout, self.process.stderr
        self._hear = hear
        self._said: deque[str] = deque(maxlen=_MAX_LINES)
        self._listener = threading.Thread(target=self._listen, name="autosync-keeper", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        for line in self._stderr:
            text = line.decode("utf-8", "replace").strip()
            if text:
                self._said.append(text)
                self._hear(text)

    def last_words(self) -> list[str]:
        """What it has said, when it has ended its stdout and so itself; its exit code where that is nothing."""
        self.process.wait(END_SECONDS)
        self._listener.join(1.0)
        return list(self._said) or [f"exit code {self.process.returncode}"]

    def close(self) -> None:
        """Have it give the machines back. Whatever interrupts this, it has ended then."""
        with contextlib.suppress(OSError):
            self.stdin.close()
        try:
            self._await_end()
            if self.process.poll() is None:
                # It does not look at its stdin: it waits in a queue, say.
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
