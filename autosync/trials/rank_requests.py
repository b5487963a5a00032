"""A rank's side of the control channel: it handles one request after another and answers each.

The main thread handles requests. A second thread listens, so that a rank that hangs can still report where it is, and
so that it ends when the service ends.
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
    """A request is refused, although nothing has failed."""


class RequestHandler(Protocol):
    """Handles the requests to a rank."""

    doing: str
    """The present activity, in words."""

    @property
    def requests(self) -> Mapping[str, Callable[[Request], Answer]]:
        """The functions that handle requests, by the request's name."""

    def where(self) -> str:
        """Return the present activity as exactly as possible. Called by another thread."""

    def idle_seconds(self) -> float | None:
        """Return how long ago the last step of a request under way has ended; None if no step has.

        Called by another thread.
        """


class RequestLoop:
    """Receives requests on this rank. `open_handler` gets a function that reports progress, and returns the handler."""

    def __init__(
        self, channel: control.Channel, open_handler: Callable[[Callable[[str], None]], RequestHandler]
    ) -> None:
        self._channel = channel
        self._requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._main = threading.get_ident()
        self._current: Any = None
        self._asked = open_handler(self._tell)

    def listen(self) -> None:
        """Receive requests until the service is gone; then end this process at once."""
        try:
            requests = self._channel.held()
            while True:
                for request in requests:
                    if not isinstance(request.get("request"), str) or type(request.get("id")) is not int:
                        raise control.ControlError("what it asks has no name or no number")  # noqa: TRY301 - told below
                    if request["request"] == "where":
                        self._answer(
                            request, result={"where": self._where(), "idle_seconds": self._asked.idle_seconds()}
                        )
                    else:
                        self._requests.put(request)
                select.select([self._channel], [], [])
                requests = self._channel.read()
        except control.ControlError as error:
            sys.stderr.write(f"the service is gone: {error}\n")
            sys.stderr.flush()
            os._exit(1)

    def _where(self) -> str:
        """Return what the main thread is doing, with file and line."""
        frame = sys._current_frames().get(self._main)  # noqa: SLF001 - the documented way to ask for another thread
        if frame is None:
            return self._asked.where()
        last = traceback.extract_stack(frame)[-1]
        return f"{self._asked.where()}, at {Path(last.filename).name}:{last.lineno} ({last.name})"

    def serve(self) -> None:
        """Handle one request after another, without end."""
        while True:
            request = self.next_request()
            try:
                result = self._asked.requests[request["request"]](request)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a failure becomes data here
                self.fail(request, error)
            else:
                self.answer(request, result)

    def next_request(self) -> Request:
        """Wait for the next request, for a caller that answers it by `answer` or `fail`."""
        request = self._current = self._requests.get()
        self._asked.doing = f"in {request['request']}"
        return request

    def answer(self, request: Request, result: Answer) -> None:
        """Answer a request."""
        self._answer(request, result=result)
        self._asked.doing = "waiting for the service"

    def fail(self, request: Request, error: BaseException) -> None:
        """Answer a request with the error that it met."""
        # The log may be on a full disk: then only the answer reports the error.
        with contextlib.suppress(OSError):
            traceback.print_exception(error)
        kind = "refused" if isinstance(error, RefusedError) else "raised"
        self._answer(request, error={"kind": kind, "message": _in_words(error), "blame": blame_of(error)})
        self._asked.doing = "waiting for the service"

    def _tell(self, doing: str) -> None:
        self._asked.doing = doing
        self._channel.send({"id": self._current["id"], "doing": doing})

    def _answer(self, request: Request, **outcome: Any) -> None:
        self._channel.send({"id": request["id"], **outcome})


def _in_words(error: BaseException) -> str:
    """Describe an error. An error of the engine in the user's backward pass is described without the user's line."""
    if isinstance(error.__cause__, OperationError) and not isinstance(error, AutosyncError):
        error = error.__cause__
    words = str(error) if isinstance(error, AutosyncError) else f"{type(error).__name__}: {error}"
    return words + disk_errors.full_disk_cause(error)


def _end_with_whoever_started_this() -> None:
    """Make the system end this process when the thread that started it ends.

    The listening thread also notices that the service is gone, but not while the process is stopped, or while the main
    thread is stuck in code that lets no other thread run.
    """
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, int(signal.SIGKILL))


def serve_requests(address: str, open_handler: Callable[[int, Callable[[str], None]], RequestHandler]) -> None:
    """Run as a rank: connect to the service at an address, and handle its requests until it is gone.

    `open_handler` makes the handler from the rank's number and a function that reports the present activity.
    """
    open_requests(address, open_handler).serve()


def open_requests(address: str, open_handler: Callable[[int, Callable[[str], None]], RequestHandler]) -> RequestLoop:
    """Connect this rank to the service at an address, and receive its requests in a second thread."""
    _end_with_whoever_started_this()
    rank = int(os.environ["RANK"])
    # Removed from the environment, because neither the user's code nor its child processes need the token.
    token = os.environ.pop(control.TOKEN_VARIABLE)
    conversation = RequestLoop(control.connect(address, token, rank), lambda tell: open_handler(rank, tell))
    threading.Thread(target=conversation.listen, name="autosync-control", daemon=True).start()
    return conversation
