"""`autosync.save`, `autosync.load` and `autosync.consolidate`: what all workers call together, between two steps."""

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
    """Save what training has beside the model's own parameters and buffers, in a folder that all workers see.

    All workers call it, between two steps, with the same path. It saves the optimizer's state and options, wherever
    they are (on every worker, in shards, at servers), what codecs hold back, what is late, outer momenta and the number
    of steps. Together with `model.state_dict()`, saved at the same time, that is the whole of a training:

        autosync.save(model, "checkpoint/engine")
        if rank == 0:
            torch.save(model.state_dict(), "checkpoint/model.pt")

    What the folder held before stays valid and whole until all is written, whatever is killed when. An error is raised
    on all workers, and names the first of them that failed.
    """
    session = session_of(model)
    meeting, training, step = _meet(session, "autosync.save")
    target = Path(path)
    # Mounts may differ, but not what is below them.
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
        meeting.together(lambda: _commit(target, training, step, version, texts) if training.rank == 0 else None)
    except OperationError:
        if training.rank == 0:
            folder.drop(target, version)
        raise


def load(model: torch.nn.Module, path: Path | str) -> int:
    """Go on from what `autosync.save` has saved: the number of steps that were made until then.

    All workers call it after `parallelize` and before a step, with the same path; the model has been given the
    `state_dict` that was saved with it by then.

        model.load_state_dict(torch.load("checkpoint/model.pt"))
        model, optimizer = autosync.parallelize(model, optimizer, "best.yaml")
        first_step = autosync.load(model, "checkpoint/engine")

    There may be more workers than there were, or fewer, and another strategy, if it keeps the same from step to step.
    With the same number of workers training goes on as if it had never stopped; else what each worker had for itself
    (what a codec held back, its own parameters and optimizer between two averages) is replaced by the mean over
    workers. What does not fit is refused, and then nothing has changed: a checkpoint of another model, optimizer, codec
    or staleness, of other parameters than the model has, of a newer version of autosync, or one that is damaged.
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
    return saved.step


def consolidate(model: torch.nn.Module, *, to: int | None = None) -> None:
    """Bring the optimizer's whole state to every worker, or to one of them.

    All workers call it, between two steps. Until the next step `optimizer.state_dict()` is what it would be in training
    without shards and servers (on worker `to` alone, where it is given), and `release` leaves the optimizer with all of
    its state. It takes as much memory as the whole state on each of these workers. Where every worker has the whole of
    it anyway there is nothing to do.
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
    """All workers are there, between the same two steps."""
    session.settle(what)
    training = session.training
    meeting = Meeting(training.links, num_workers=training.plan.num_workers, what=what)
    meeting.compare({"call": what, "step": session.step})
    return meeting, training, session.step


def _commit(path: Path, training: Training, step: int, version: str, texts: list[bytes]) -> None:
    bundle = training.bundle
    saved = Saved(
        autosync=__version__,
        torch=torch.__version__,
        model=bundle.model.name,
        model_fingerprint=bundle.model.fingerprint(),
        strategy_id=bundle.strategy_id,
        plan_id=bundle.plan_id,
        num_workers=training.plan.num_workers,
        step=step,
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
    """Workers share the work: each checks some of the files."""
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
