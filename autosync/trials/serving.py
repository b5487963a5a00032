"""A contestant on a rank that only serves: runs the server of its plan, if the plan needs one."""

from __future__ import annotations

import datetime as dt
import random
import threading
import traceback
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.plan.lowering import lower
from autosync.runtime.serving.invitations import servers_of
from autosync.runtime.serving.serve import Server
from autosync.specs.task import Task
from autosync.specs.task_run import build_model
from autosync.strategy.bundle import Bundle


class Serving:
    """Serves one contestant in a separate thread. As on workers, the first parameters come from the seed.

    It meets the contestant's workers at `store`. Without a bundle, or if the plan has no work for servers, it idles.
    """

    def __init__(
        self, task: Task, *, bundle: Bundle | None, node: str, store: Any, seed: int, timeout_seconds: float
    ) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._timeout_seconds = timeout_seconds
        if bundle is None or not servers_of(lower(bundle.strategy, bundle.model, bundle.cluster)):
            return
        torch.manual_seed(seed)
        random.seed(seed)
        parameters = dict(build_model(task).named_parameters())
        server = Server(bundle, node=node, parameters=parameters, timeout_seconds=timeout_seconds)
        begun = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(server, store, begun), name="autosync-serve")
        self._thread.daemon = True
        self._thread.start()
        begun.wait()
        self._check()

    def _serve(self, server: Server, store: Any, begun: threading.Event) -> None:
        try:
            invitation = server.await_workers(store, patience=dt.timedelta(seconds=self._timeout_seconds))
            server.train(store, invitation, begun=begun.set)
        except Exception as error:  # noqa: BLE001 - whatever it is, the main thread must hear of it
            traceback.print_exc()
            self._error = error
        finally:
            begun.set()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Wait for the end of the training, which the first worker announces."""
        if self._thread is not None:
            self._thread.join(self._timeout_seconds)
            if self._thread.is_alive():
                raise OperationError("the first worker has not ended the training")
        self._check()
