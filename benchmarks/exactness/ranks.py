"""The ranks of `exactness.py`: `python ranks.py FD...` forks a rank for each file descriptor.

Importing torch takes seconds, so ranks are forks and run case after case. Each receives cases over its descriptor and
answers each.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import hashlib
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DDP and optimizers import it late, so that each rank would do so
import torch.distributed as dist

from autosync import parallelize
from autosync.errors import AutosyncError, OperationError
from autosync.plan.types import Plan
from autosync.runtime.checkpoints.state_kinds import variables_kept_apart
from autosync.runtime.local.engine_updates import engine_updates
from autosync.runtime.parallelize import no_sync, release
from autosync.runtime.serving import serve
from autosync.runtime.serving.invitations import servers_of
from autosync.runtime.stock.buckets import stock_buckets

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.exactness.cases import Case
from benchmarks.exactness.meaning import Meaning
from benchmarks.exactness.reference import Expectation, Gradients, Training, state_of, values_of
from benchmarks.shared import fork_ranks
from tests.helpers.gpu_rehearsals import Rehearsal, rehearsed

STEP_TIMEOUT_SECONDS = 30.0
P_DELAY = 0.3
MAX_DELAY_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """The first message to a rank: the facts that it needs to join the ranks of a cluster.

    `serves` is the name of its node if it only serves. `device` and `rehearsal` say where and how it trains.
    """

    port: int
    rank: int
    serves: str
    num_workers: int
    num_steps: int
    has_delays: bool
    device: str
    rehearsal: Rehearsal | None


@dataclass(slots=True, kw_only=True)
class Answer:
    """The outcome of a case on one rank.

    `digests` are of the tensors at the end, and `worst` is the largest error as a share of its tolerance.
    """

    outcome: str = "trained"
    problems: list[str] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    worst: float = 0.0
    num_gradients: int = 0
    has_state: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def has_failed(self) -> bool:
        """Whether other ranks may wait for this one in vain."""
        return self.outcome in {"raised", "refused"}

    def fail(self, error: Exception) -> None:
        self.outcome = "raised"
        place = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error} ({place.name}, line {place.lineno} of {place.filename})"
        self.problems.append(what)

    def note_threads(self) -> None:
        self.problems += [f"left over: {one.name}" for one in threading.enumerate() if "autosync" in one.name]


class Server:
    """One rank that only serves."""

    def __init__(self, join: Join, store: dist.Store) -> None:
        self._join = join
        self._store = store

    def run(self, case: Case) -> Answer:
        """Serve a case; any error is in the answer."""
        answer = Answer(outcome="served")
        if not servers_of(case.plan()):
            return answer
        try:
            server = serve.Server(case.bundle, node=self._join.serves, timeout_seconds=STEP_TIMEOUT_SECONDS)
            patience = dt.timedelta(seconds=2 * STEP_TIMEOUT_SECONDS)
            server.train(self._store, server.await_workers(self._store, patience=patience))
        except Exception as error:  # noqa: BLE001 - whatever it is, the case has failed by it
            answer.fail(error)
        else:
            if server.num_steps != self._join.num_steps:
                answer.problems.append(f"{server.num_steps} steps were served, not {self._join.num_steps}")
        answer.note_threads()
        return answer


class Worker:
    """One rank that trains."""

    def __init__(self, join: Join, store: dist.Store) -> None:
        self._join = join
        dist.init_process_group(
            "gloo", store=store, rank=join.rank, world_size=join.num_workers, timeout=dt.timedelta(seconds=60)
        )
        self._device = join.device
        if join.device == "cuda":
            self._device = f"cuda:{join.rank % torch.cuda.device_count()}"
        self.expect = functools.cache(functools.partial(Expectation, num_steps=join.num_steps, device=self._device))

    def run(self, case: Case) -> Answer:
        """Train a case; any error is in the answer."""
        answer = Answer()
        try:
            self._train(case, self._expectation(case), answer)
        except Exception as error:  # noqa: BLE001 - whatever it is, the case has failed by it
            answer.fail(error)
        answer.note_threads()
        return answer

    def _expectation(self, case: Case) -> Expectation | Meaning:
        if case.bundle.strategy.is_exact:
            return self.expect(case.task, case.dtype)
        return Meaning(
            case.bundle.strategy,
            case.task,
            case.dtype,
            rank=self._join.rank,
            num_ranks=self._join.num_workers,
            num_steps=self._join.num_steps,
            numbers={part.variable.name: index for index, part in enumerate(case.plan().parts)},
        )

    def _train(self, case: Case, expectation: Expectation | Meaning, answer: Answer) -> None:
        shares = case.bundle.strategy.shares
        made = Training(case.task, case.dtype, self._join.rank, self._device, shares)
        made.without_sync = lambda: no_sync(made.model)
        plan = case.plan()
        visible = _visible(case, plan) if case.bundle.strategy.is_exact else []
        answer.num_gradients = len(visible)
        gradients = Gradients(made.model, visible, _factors(plan))
        start = time.perf_counter()
        try:
            parallelize(
                made.model,
                made.optimizer,
                case.bundle,
                timeout_seconds=STEP_TIMEOUT_SECONDS,
                hand_off=case.hand_off,
                checks=case.checks,
                batch_size=shares[self._join.rank] if shares else None,
            )
        except AutosyncError as error:
            answer.outcome = "refused"
            answer.problems.append(f"{type(error).__name__}: {error}")
            return
        answer.seconds["start"] = time.perf_counter() - start
        with contextlib.ExitStack() as at_end:
            at_end.callback(release, made.model)
            delays = at_end.enter_context(self._delays(case, made))
            for step in range(self._join.num_steps):
                self._step(case, expectation, answer, made, gradients, step=step, delays=delays)
            if case.saves_state and isinstance(expectation, Expectation):
                self._compare_state(expectation, answer, made, plan)
            answer.seconds["train"] = time.perf_counter() - start - answer.seconds["start"]
        answer.seconds["release"] = time.perf_counter() - start - sum(answer.seconds.values())
        if case.bundle.strategy.is_exact:
            self._compare_values(expectation, answer, made, self._join.num_steps - 1)
        answer.digests = {name: _digest(value) for name, value in made.model.state_dict().items()}

    def _step(
        self,
        case: Case,
        expectation: Expectation | Meaning,
        answer: Answer,
        made: Training,
        gradients: Gradients,
        *,
        step: int,
        delays: _Delays,
    ) -> None:
        made.optimizer.zero_grad()
        made.backward()
        answer.problems += [f"in step {step} {one}" for one in gradients.differ(made)]
        delays.sleep()
        made.update()
        if step == case.state_step:
            self._compare_values(expectation, answer, made, step)
        if step == case.eval_step and isinstance(expectation, Expectation):
            answer.problems += expectation.evaluation_differs(step, made.evaluate())

    def _compare_state(self, expectation: Expectation, answer: Answer, made: Training, plan: Plan) -> None:
        try:
            state = state_of(made.optimizer)
        except OperationError as error:
            if not variables_kept_apart(
                plan, engine_updates(plan).operations
            ) or "autosync.consolidate(model)" not in str(error):
                raise
        else:
            answer.has_state = True
            found, worst = expectation.state_differs(state)
            answer.problems += found
            answer.worst = max(answer.worst, worst)

    def _compare_values(self, expectation: Expectation | Meaning, answer: Answer, made: Training, step: int) -> None:
        found, worst = expectation.values_differ(step, values_of(made.model))
        answer.problems += found
        answer.worst = max(answer.worst, worst)

    @contextlib.contextmanager
    def _delays(self, case: Case, made: Training) -> Iterator[_Delays]:
        delays = _Delays(random.Random(f"{case.draws}/{self._join.rank}"), is_on=self._join.has_delays)
        hooks: list[Any] = []
        if self._join.has_delays:
            hooks += [one.register_forward_pre_hook(lambda *_: delays.sleep()) for one in made.model.modules()]
            hooks += [
                one.register_hook(lambda _: delays.sleep()) for one in made.model.parameters() if one.requires_grad
            ]
        try:
            yield delays
        finally:
            for hook in hooks:
                hook.remove()


class _Delays:
    """Sleeps at random moments, for a random time."""

    def __init__(self, rng: random.Random, *, is_on: bool) -> None:
        self._rng = rng
        self._is_on = is_on

    def sleep(self) -> None:
        if self._is_on and self._rng.random() < P_DELAY:
            time.sleep(self._rng.uniform(0, MAX_DELAY_SECONDS))


def _visible(case: Case, plan: Plan) -> list[str]:
    """Return the variables whose gradients belong to the user when backward has returned."""
    engines = engine_updates(plan).variables
    if case.hand_off and stock_buckets(plan) is not None:
        engines = frozenset()
    return [variable.name for variable in case.bundle.model.variables if variable.name not in engines]


def _factors(plan: Plan) -> frozenset[str]:
    """Return the variables whose gradients travel as factors, wholly or in part."""
    return frozenset(plan.parts[region.part].variable.name for region in plan.regions if region.kind == "factors")


def _digest(value: torch.Tensor) -> str:
    return hashlib.blake2b(value.detach().cpu().contiguous().numpy().tobytes(), digest_size=8).hexdigest()


def _be_repeatable() -> None:
    """Make GPUs round as float32 and repeatably, because the compared values are computed twice."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(mode=True, warn_only=True)


def serve_connection(connection: Connection) -> None:
    """Run one rank: answer cases until the other end closes."""
    # Set after the fork, while there is one thread. If a parent had a thread pool, the first threads that use it would
    # each create a new one.
    torch.set_num_threads(1)
    join: Join = connection.recv()
    if join.device != "cpu":
        _be_repeatable()
    store = dist.TCPStore("127.0.0.1", join.port, is_master=False, wait_for_workers=False)
    rank = Server(join, store) if join.serves else Worker(join, store)
    while True:
        try:
            case: Case = connection.recv()
        except EOFError:
            return
        with rehearsed(join.rehearsal):
            answer = rank.run(case)
        connection.send(answer)


def main(descriptors: list[int]) -> None:
    """Fork the ranks and wait for them."""

    def body(own: int) -> None:
        for other in descriptors:
            if other != own:
                os.close(other)
        serve_connection(Connection(own))

    fork_ranks([functools.partial(body, own) for own in descriptors])


if __name__ == "__main__":
    # Answers must be pickled under this module's name, not under `__main__`.
    from benchmarks.exactness import ranks

    ranks.main([int(argument) for argument in sys.argv[1:]])
