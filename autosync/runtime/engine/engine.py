"""The engine: executes a plan on one rank, beside the training loop.

Each lane of the plan has a thread that carries out its transfers one after another; one more thread does local work. A
thread goes on when its next item is ready (see `rank_script`). Counters tell when (`iterations`), so nothing is
searched or polled. The training thread reports events (a gradient, the call of `step()`) and waits at gates. A lane has
the same order on all ranks, and lanes wait for one another only through edges, so nothing deadlocks.

An iteration is one optimizer step. `begin` opens the next one, while items of earlier ones may still be under way. But
before its gradients are taken, `wait_due` waits for everything that could still read the buffers they overwrite: for a
message whose parameters come s iterations late, the operations of the iteration s before the last (for s = 0, of the
last). Less would not do, because a message has s + 1 buffers in turn. If parameters are not late, this is no extra
wait: their arrival means that the gradients were sent before.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Collection
from typing import Literal

from autosync.errors import OperationError
from autosync.plan.types import GateKind, Plan, Transfer
from autosync.runtime.engine.device import Streams
from autosync.runtime.engine.iterations import Iteration, Iterations
from autosync.runtime.engine.rank_script import Script
from autosync.runtime.engine.trace import COMPUTE, Trace
from autosync.runtime.engine.work import FollowingTransfers, Work

LOCAL = -1
"""The lane number that stands for local work."""


def thread_of(lane: int) -> int:
    """Return the number of a lane's thread in a timeline."""
    return COMPUTE + 2 + lane


class _Sleeper:
    """Lets a thread sleep until it is woken. A wake-up that comes before the sleep is not lost."""

    __slots__ = ("_lock", "awake")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.awake = True

    def wake(self) -> None:
        """Wake the thread. The caller holds the engine's lock."""
        if not self.awake:
            self.awake = True
            self._lock.release()

    def sleep(self, seconds: float = -1) -> bool:
        """Sleep until woken, or for `seconds`, without the engine's lock. `awake` was set to False under it."""
        return self._lock.acquire(timeout=seconds)


class Engine:
    """Executes a plan for one rank. Call `begin` first; `close` ends the threads."""

    def __init__(
        self,
        plan: Plan,
        script: Script,
        work: Work,
        *,
        rank: int,
        timeout_seconds: float,
        trace: Trace | None = None,
        streams: Streams | None = None,
    ) -> None:
        self._plan = plan
        self._script = script
        self._work = work
        self._rank = rank
        self._timeout_seconds = timeout_seconds
        self._trace = trace
        self._streams = streams
        self._lock = threading.Lock()
        self._locals: list[tuple[int, int, int]] = []
        self._priorities = [plan.operations[index].message for index in script.operations]
        self._are_transfers = [isinstance(plan.operations[index], Transfer) for index in script.operations]
        self._item_of = {index: item for item, index in enumerate(script.operations)}
        self._under_way: dict[int, int] = {}
        self._is_closing = False
        self._closed = False
        self._error: BaseException | None = None
        # When the last operation was done.
        self._done_at = 0.0
        # Other threads of the script may wait, besides the training thread.
        self._waiting = threading.Lock()
        self._main = _Sleeper()
        self._iterations = Iterations(script, on_ready=self._hand_out, on_progress=self._main.wake)
        self._worker = _Sleeper()
        self._lanes = {lane: _Sleeper() for lane in script.lanes}
        self._reached = dict.fromkeys(script.lanes, 0)
        self._lane_of = {item: lane for lane, items in script.lanes.items() for item in items}
        self._threads: list[threading.Thread] = []
        if trace is not None:
            trace.name_thread(thread_of(LOCAL), "local work")
            for lane in script.lanes:
                trace.name_thread(thread_of(lane), plan.queue_in_words(lane))
        self._start_threads()

    def _start_threads(self) -> None:
        self._threads = [
            threading.Thread(target=self._guard, args=(self._run_lane, lane), name=f"autosync-lane-{lane}", daemon=True)
            for lane in self._script.lanes
        ]
        self._threads.append(
            threading.Thread(target=self._guard, args=(self._run_locals, LOCAL), name="autosync-local", daemon=True)
        )
        for thread in self._threads:
            thread.start()

    @property
    def iteration(self) -> int:
        """The number of the open iteration."""
        return self._iterations.number

    @property
    def has_failed(self) -> bool:
        """Whether a thread has ended with an error; the next call of the training thread raises it."""
        return self._error is not None

    # Called by the training thread.

    def begin(self) -> None:
        """Open the next iteration."""
        with self._lock:
            self._iterations.open(self._reached.values())
            for sleeper in self._lanes.values():
                sleeper.wake()

    def gradient_ready(self, variable: int) -> None:
        """Report that a variable's gradient of this iteration is complete."""
        self._happen(self._script.on_gradient[variable])

    def step_called(self) -> None:
        """Report that `step()` was called: the hyperparameters of this iteration are known."""
        self._happen(self._script.on_step_called)

    def user_updated(self) -> None:
        """Report that the user's optimizer has updated its variables."""
        self._happen(self._script.on_user_updated)

    def wait(self, kind: GateKind, variable: int = -1) -> None:
        """Wait at a gate of the plan in this iteration; raise the error of any engine thread that has failed."""
        gate = self._script.gates.get((kind, variable))
        if gate is not None:
            current = self._iterations.current
            self._wait(lambda: current.unmet[gate] == 0)
            if self._streams is not None:
                self._streams.pass_gate(gate, current.number)

    def wait_operations(self, operations: Collection[int]) -> None:
        """Wait for operations (by position in the plan) of the open iteration; those of other ranks are ignored."""
        current = self._iterations.current
        items = [self._item_of[index] for index in operations if index in self._item_of]
        with self._lock:
            self._iterations.awaited.update(items)
        self._wait(lambda: all(current.done[item] for item in items))
        self._catch_up()
        with self._lock:
            self._iterations.awaited.clear()

    def wait_done(self, *, iterations_back: int = 0) -> None:
        """Wait for all operations up to the open iteration, or up to `iterations_back` iterations before it."""
        last = self.iteration - iterations_back
        self._wait(lambda: self._iterations.are_done(last))
        self._catch_up()

    def wait_due(self, *, iterations_back: int = 0) -> None:
        """Wait for all operations due in the open iteration, or `iterations_back` before it: see `Script.lateness`."""
        last = self.iteration - iterations_back
        self._wait(lambda: self._iterations.are_due_done(last))
        self._catch_up()

    def restart(self, iteration: int) -> None:
        """Make this the next iteration that `begin` opens. The open one must be unused, and earlier ones done."""
        self._end_threads()
        with self._lock:
            self._iterations.restart(iteration)
            self._reached = dict.fromkeys(self._reached, iteration)
            self._closed = False
        self._start_threads()

    def fail(self, error: BaseException) -> None:
        """Have the training thread raise an error of another thread of the session, and end all waits for ranks."""
        with self._lock:
            # The first error is the reason; later ones follow from it.
            self._error = self._error or error
            self._wake_all()
        self._work.abort()

    def raise_failure(self) -> None:
        """Raise the error with which a thread has ended, if there is one."""
        if self._error is not None:
            self._raise()

    def wait_no_longer_than(self, seconds: float) -> None:
        """Limit every further wait in which nothing goes on to this time."""
        self._timeout_seconds = min(self._timeout_seconds, seconds)

    def close(self) -> None:
        """Do everything that can still be done, because other ranks may take part in it; then end the threads."""
        try:
            if self._error is None:
                with self._lock:
                    self._is_closing = True
                self._wait(self._is_at_rest)
                if self._streams is not None:
                    self._streams.close()
        finally:
            self._end_threads()

    def _catch_up(self) -> None:
        if self._streams is not None:
            self._streams.catch_up()

    def _is_at_rest(self) -> bool:
        return not any(sleeper.awake for sleeper in (self._worker, *self._lanes.values()))

    def _end_threads(self) -> None:
        with self._lock:
            self._closed = True
            self._wake_all()
        for thread in self._threads:
            thread.join(self._timeout_seconds)
        if any(thread.is_alive() for thread in self._threads):
            raise OperationError(f"rank {self._rank}: {self.where()}: no end within {self._timeout_seconds:g} s")

    def where(self) -> str:
        """Return the operations under way in words, for errors."""
        found = [self.name(item) for item in list(self._under_way.values())]
        return ", ".join(found[:4]) or "nothing under way"

    def name(self, item: int) -> str:
        """Return an operation in words."""
        index = self._script.operations[item]
        operation = self._plan.operations[index]
        what = operation.collective if isinstance(operation, Transfer) else operation.kind
        parts = self._plan.messages[operation.message]
        more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
        return f"{what} of {parts[0]}{more} (operation {index})"

    # Progress of items. Callbacks run with the lock held.

    def _happen(self, items: tuple[int, ...]) -> None:
        if self._error is not None:
            self._raise()
        if not items:
            return
        if self._streams is not None:
            self._streams.tell(items, self.iteration)
        with self._lock:
            self._iterations.happen(items)

    def _hand_out(self, iteration: Iteration, item: int) -> None:
        """Give a ready operation to its thread, and wake the thread."""
        lane = self._lane_of.get(item)
        if lane is not None:
            self._lanes[lane].wake()
        else:
            heapq.heappush(self._locals, (iteration.number, self._priorities[item], item))
            self._worker.wake()

    def _rest(self, sleeper: _Sleeper) -> None:
        """Note that a thread has nothing to do."""
        sleeper.awake = False
        if self._is_closing:
            self._main.wake()

    def _wake_all(self) -> None:
        for sleeper in (self._main, self._worker, *self._lanes.values()):
            sleeper.wake()

    # Waiting.

    def _wait(self, is_met: Callable[[], bool]) -> None:
        with self._waiting:
            self._wait_alone(is_met)

    def _wait_alone(self, is_met: Callable[[], bool]) -> None:
        start_ns, began_at = time.perf_counter_ns(), time.perf_counter()
        has_slept = False
        while True:
            with self._lock:
                if self._error is None:
                    if is_met():
                        break
                    self._main.awake = False
            if self._error is not None:
                self._raise()
            has_slept = True
            if not self._main.sleep(self._patience(began_at)) and not self._patience(began_at):
                limit = f"{self._timeout_seconds:g} s in which nothing went on"
                raise OperationError(f"rank {self._rank}: {self.where()}: no end within {limit}")
        if self._trace is not None and has_slept:
            self._trace.add("wait", "wait", COMPUTE, start_ns, iteration=self.iteration)

    def _patience(self, began_at: float) -> float:
        """Return for how long to wait on: the limit counts from when anything was last done, sent or received."""
        last = max(began_at, self._done_at, self._work.heard_at())
        return max(0.0, last + self._timeout_seconds - time.perf_counter())

    def _raise(self) -> None:
        raise OperationError(f"rank {self._rank}: {self._error}") from self._error

    # The threads.

    def _guard(self, run: Callable[[int], None], lane: int) -> None:
        try:
            self._work.begin_thread()
            if self._streams is not None:
                self._streams.begin_thread()
            run(lane)
        except Exception as error:  # noqa: BLE001 - any error must reach the training thread
            item = self._under_way.get(lane)
            told = OperationError(f"{self.name(item)} failed: {error}") if item is not None else error
            told.__cause__ = error
            self.fail(told)

    def _run_lane(self, lane: int) -> None:
        sleeper, items, number = self._lanes[lane], self._script.lanes[lane], self._reached[lane]
        while True:
            told = 0
            for place, item in enumerate(items):
                iteration = self._next_of_lane(sleeper, number, item)
                if iteration is None:
                    return
                if iteration.done[item]:
                    continue
                told = max(told, place + 1)
                following = FollowingTransfers(self._work, self._script.operations, items, told, iteration)
                self._perform(lane, iteration, item, following)
                told = following.place
            number += 1
            self._reached[lane] = number

    def _next_of_lane(self, sleeper: _Sleeper, number: int, item: int) -> Iteration | None:
        """Sleep until the item is ready or done, and return its iteration; None when the engine ends."""
        while True:
            with self._lock:
                if self._closed or self._error is not None:
                    return None
                iteration = self._iterations.find(number)
                if iteration is not None and (iteration.done[item] or iteration.unmet[item] == 0):
                    return iteration
                self._rest(sleeper)
            sleeper.sleep()

    def _run_locals(self, lane: int) -> None:
        while True:
            with self._lock:
                if self._closed or self._error is not None:
                    return
                found = heapq.heappop(self._locals) if self._locals else None
                if found is None:
                    self._rest(self._worker)
            if found is None:
                self._worker.sleep()
                continue
            number, _, item = found
            iteration = self._iterations.find(number)
            assert iteration is not None, "an iteration is kept while anything of it is not done"
            self._perform(lane, iteration, item)

    def _perform(
        self, lane: int, iteration: Iteration, item: int, following: Callable[[], int | None] = lambda: None
    ) -> None:
        start_ns = time.perf_counter_ns()
        self._under_way[lane] = item
        operation, is_transfer = self._script.operations[item], self._are_transfers[item]
        if self._streams is not None:
            self._streams.begin(item, iteration.number)
        if is_transfer:
            self._work.transfer(operation, iteration.number, following)
        else:
            self._work.local(operation, iteration.number)
        if self._streams is not None:
            self._streams.end(item, iteration.number)
        del self._under_way[lane]
        if self._trace is not None:
            kind: Literal["transfer", "local"] = "transfer" if is_transfer else "local"
            self._trace.add(kind, self.name(item), thread_of(lane), start_ns, iteration=iteration.number)
        self._done_at = time.perf_counter()
        with self._lock:
            self._iterations.settle(iteration, item)
