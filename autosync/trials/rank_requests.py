"""A rank's side of the control channel: what it is asked it does, one request after another, and answers each.

The main thread does what is asked; another one listens, so that a rank that hangs can still say where it is, and so
that it ends when whoever started it does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from autosync import disk_errors
from autosync.errors import AutosyncError, OperationError
from autosync.trials import control
from autosync.trials.failures import blame_of

Request = Mapping[str, Any]
Answer = dict[str, Any]


class RefusedError(AutosyncError):
    """What is asked is refused: nothing has gone wrong."""


class RequestHandler(Protocol):
    """Who does what a rank is asked."""

    doing: str
    """What it is doing, in words."""

    @property
    def requests(self) -> Mapping[str, Callable[[Request], Answer]]:
        """What may be asked, by name."""

    def where(self) -> str:
        """What it is doing, as exactly as it can say. Another thread asks."""


class RequestLoop:
    """Takes requests on this rank. `open_handler` gets a function that reports progress, and returns the handler."""

    def __init__(
        self, channel: control.Channel, open_handler: Callable[[Callable[[str], None]], RequestHandler]
    ) -> None:
        self._channel = channel
        self._requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._main = threading.get_ident()
        self._current: Any = None
        self._asked = open_handler(self._tell)

    def listen(self) -> None:
        """Take requests until whoever asks is gone; then this process ends, whatever it is in the middle of."""
        try:
            requests = self._channel.held()
            while True:
                for request in requests:
                    if not isinstance(request.get("request"), str) or type(request.get("id")) is not int:
                        raise control.ControlError("what it asks has no name or no number")  # noqa: TRY301 - told below
                    if request["request"] == "where":
                        self._answer(request, result={"where": self._where()})
                    else:
                        self._requests.put(request)
                select.select([self._channel], [], [])
                requests = self._channel.read()
        except control.ControlError as error:
            sys.stderr.write(f"the service is gone: {error}\n")
            sys.stderr.flush()
            os._exit(1)

    def _where(self) -> str:
        """What the main thread is doing, down to the line."""
        frame = sys._current_frames().get(self._main)  # noqa: SLF001 - the documented way to ask for another thread
        if frame is None:
            return self._asked.where()
        last = traceback.extract_stack(frame)[-1]
        return f"{self._asked.where()}, at {Path(last.filename).name}:{last.lineno} ({last.name})"

    def serve(self) -> None:
        """Do what is asked, one request after another."""
        while True:
            request = self._current = self._requests.get()
            self._asked.doing = f"in {request['request']}"
            try:
                result = self._asked.requests[request["request"]](request)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a failure becomes data here
                # Its log may be on the disk that is full: then the answer is all that tells of it.
                with contextlib.suppress(OSError):
                    traceback.print_exc()
                kind = "refused" if isinstance(error, RefusedError) else "raised"
                self._answer(request, error={"kind": kind, "message": _in_words(error), "blame": blame_of(error)})
            else:
                self._answer(request, result=result)
            self._asked.doing = "waiting for the service"

    def _tell(self, doing: str) -> None:
        self._asked.doing = doing
        self._channel.send({"id": self._current["id"], "doing": doing})

    def _answer(self, request: Request, **outcome: Any) -> None:
        self._channel.send({"id": request["id"], **outcome})


def _in_words(error: BaseException) -> str:
    """What went wrong. What the engine raised within the user's backward pass is no fault of the user's line."""
    if isinstance(error.__cause__, OperationError):
        error = error.__cause__
    words = str(error) if isinstance(error, AutosyncError) else f"{type(error).__name__}: {error}"
    return words + disk_errors.full_disk_cause(error)


def _end_with_whoever_started_this() -> None:
    """Let the system end this process when the thread that started it ends.

    The listening thread sees that the service is gone too, but not while the process is stopped, or the main thread is
    stuck where no other gets to run.
    """
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, int(signal.SIGKILL))


def serve_requests(address: str, open_handler: Callable[[int, Callable[[str], None]], RequestHandler]) -> None:
    """Be a rank: connect to an address, and do what is asked there until whoever asks is gone.

    `open_handler` makes who does it, of the rank's number and a function that tells what it is doing meanwhile.
    """
    _end_with_whoever_started_this()
    rank = int(os.environ["RANK"])
    # Neither the user's code nor what it starts has any business with it.
    token = os.environ.pop(control.TOKEN_VARIABLE)
    conversation = RequestLoop(control.connect(address, token, rank), lambda tell: open_handler(rank, tell))
    threading.Thread(target=conversation.listen, name="autosync-control", daemon=True).start()
    conversation.serve()
