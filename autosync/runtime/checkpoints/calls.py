"""`autosync.save`, `autosync.load` and `autosync.consolidate`, which all workers call together between two steps."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from autosync import __version__
from autosync.errors import OperationError
from autosync.runtime.checkpoints import folder, loading
from autosync.runtime.checkpoints import worker_state as workers
from autosync.runtime.checkpoints.collected import Collected, Sent
from autosync.runtime.checkpoints.folder import FileFacts, Saved
from autosync.runtime.checkpoints.rank_state import RankState, pack
from autosync.runtime.checkpoints.state_kinds import natures
from autosync.runtime.checkpoints.worker_call import Meeting
from autosync.runtime.parallelize import session_of
from autosync.runtime.session.synchronisation import Synchronisation
from autosync.runtime.session.training import Training


def save(model: torch.nn.Module, path: Path | str) -> None:
    """Save the state of a training, except the model's own parameters and buffers, in a folder that all workers see.

    All workers call it between two steps, with the same path. It saves the state and options of the optimizer, wherever
    they are (on every worker, in shards, at servers), the gradients that codecs hold back, late parameters, outer
    momenta and the number of steps. Together with `model.state_dict()`, saved at the same time, this is the complete
    state of a training:

        autosync.save(model, "checkpoint/engine")
        if rank == 0:
            torch.save(model.state_dict(), "checkpoint/model.pt")

    The previous contents of the folder stay valid and complete until the new ones are fully written, even if processes
    are killed meanwhile. An error is raised on all workers and names the first worker that failed.
    """
    session = session_of(model)
    meeting, training, step = _meet(session, "autosync.save")
    target = Path(path)
    # Workers may mount the folder at different places, but its own name is the same.
    meeting.compare({"folder": target.absolute().name})
    made = meeting.together(lambda: folder.begin(target) if training.rank == 0 else "")
    version = meeting.hear_first(made.encode()).decode()

    def write() -> FileFacts:
        state = workers.state_of_worker(training, step)
        if training.servers is not None:
            for served in training.servers.states():
                state.add_all(served)
        return folder.write_file(target, version, training.rank, pack(state))

    try:
        facts = meeting.together(write)
        texts = meeting.gather(json.dumps(dataclasses.asdict(facts)).encode())
        meeting.together(lambda: _commit(target, session, version, texts) if training.rank == 0 else None)
    except OperationError:
        if training.rank == 0:
            folder.drop(target, version)
        raise


def load(model: torch.nn.Module, path: Path | str) -> int:
    """Resume from a checkpoint of `autosync.save`, and return the number of optimizer steps that were made before it.

    All workers call it after `parallelize` and before any step, with the same path. The `state_dict` that was saved
    with the checkpoint must have been loaded into the model before:

        model.load_state_dict(torch.load("checkpoint/model.pt"))
        model, optimizer = autosync.parallelize(model, optimizer, "best.yaml")
        first_step = autosync.load(model, "checkpoint/engine")

    The number of workers may have changed. The strategy may have changed too, if it keeps the same kinds of state from
    step to step. With the same number of workers, training continues as if it had never stopped. With another number,
    state that each worker had for itself (what a codec held back, its own parameters and optimizer state between two
    averages) is replaced by the mean over workers. `load` refuses a checkpoint of another model, optimizer, codec or
    staleness, of other parameter values than the model has, of a newer version of autosync, or one that is damaged.
    Then nothing has changed.
    """
    session = session_of(model)
    meeting, training, _ = _meet(session, "autosync.load")
    source = Path(path)
    saved = meeting.together(lambda: _read(training, source))
    meeting.compare({"the checkpoint": saved.checksum})
    meeting.together(lambda: _check_files(source, saved, meeting))
    with ExitStack() as files:

        def prepare() -> loading.Loading:
            ranks = range(saved.num_workers)
            collected = Collected([files.enter_context(_opened(source, saved, rank)) for rank in ranks])
            return loading.prepare(training, collected, saved)

        session.go_on_from(meeting.together(prepare))
    return saved.num_steps


def consolidate(model: torch.nn.Module, *, to: int | None = None) -> None:
    """Copy the optimizer's complete state to every worker, or to one worker.

    All workers call it between two steps. Until the next step, `optimizer.state_dict()` is what it would be in training
    without shards and servers (with `to`, on that worker only), and `release` leaves the optimizer with all of its
    state. Each of these workers needs memory for the complete state. If every worker has it anyway, the call does
    nothing.
    """
    session = session_of(model)
    meeting, training, _ = _meet(session, "autosync.consolidate")
    meeting.compare({"to": to})
    if to is not None and not 0 <= to < meeting.num_workers:
        raise OperationError(f"autosync.consolidate: no worker {to} (0 to {meeting.num_workers - 1})")
    apart = session.kept_apart
    if not apart:
        return

    def own() -> bytes:
        state = RankState()
        is_first = training.rank == 0
        workers.add_optimizer(state, training, lambda name, is_shared: name in apart and (is_first or not is_shared))
        if training.servers is not None:
            for served in training.servers.states():
                state.add_all(served)
        return pack(state)

    content = meeting.together(own)
    everyones = meeting.gather_everywhere(content) if to is None else meeting.gather(content, to=to)
    if everyones:
        collected = Collected([Sent(safetensors.torch.load(one)) for one in everyones])
        session.bring_home(workers.entries(training, collected, apart), alone=to is not None)


def _meet(session: Synchronisation, what: str) -> tuple[Meeting, Training, int]:
    """Check that all workers make this call between the same two steps; return meeting, training and step."""
    session.settle(what)
    training = session.training
    meeting = Meeting(training.links, num_workers=training.plan.num_workers, what=what)
    meeting.compare({"call": what, "step": session.step})
    return meeting, training, session.step


def _commit(path: Path, session: Synchronisation, version: str, texts: list[bytes]) -> None:
    training = session.training
    bundle = training.bundle
    saved = Saved(
        autosync=__version__,
        torch=torch.__version__,
        model=bundle.model.name,
        model_fingerprint=bundle.model.fingerprint(),
        strategy_id=bundle.strategy_id,
        plan_id=bundle.plan_id,
        num_workers=training.plan.num_workers,
        step=session.step,
        optimizer_steps=session.num_steps,
        optimizer=workers.class_name(training.optimizer),
        kept=natures(training.plan),
        parameters=workers.hashes(training),
        folder=version,
        files=[FileFacts(**json.loads(text)) for text in texts],
    )
    folder.commit(path, saved)


def _read(training: Training, path: Path) -> Saved:
    saved = folder.read(path)
    loading.refuse_what_does_not_fit(training, saved)
    return saved


def _check_files(path: Path, saved: Saved, meeting: Meeting) -> None:
    """Check this worker's share of the checkpoint's files; the other workers check the other files."""
    for rank in range(meeting.rank, saved.num_workers, meeting.num_workers):
        folder.check_file(path, saved, rank)


@contextmanager
def _opened(path: Path, saved: Saved, rank: int) -> Iterator[Any]:
    file = folder.path_of(path, saved, rank)
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            yield opened
    except safetensors.SafetensorError as error:
        raise OperationError(f"{file} is no file of tensors: {error}") from error
