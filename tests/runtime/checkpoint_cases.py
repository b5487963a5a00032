"""Ranks that train a model whose gradients are the reference's, save, and go on in other processes."""

import contextlib
import copy
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from checkpoint_killed import killed_at
from rank_training import raised

import autosync
from autosync.errors import AutosyncError
from autosync.plan.reference.workload import Workload
from autosync.runtime.checkpoints.calls import consolidate, load, save
from autosync.runtime.checkpoints.folder import read
from autosync.runtime.parallelize import drain, parallelize, release, session_of
from autosync.strategy.bundle import Bundle, load_bundle
from tests.helpers.workload_model import WorkloadModel, workload_optimizer

TIMEOUT_SECONDS = 20


class Run:
    """A model and its optimizer. `strange` ones begin elsewhere than all others, as those of another program do."""

    def __init__(self, bundle: str, *, strange: bool = False) -> None:
        self.bundle: Bundle = load_bundle(bundle)
        self.rank = dist.get_rank()
        self.model = WorkloadModel(Workload(model=self.bundle.model), self.rank)
        if strange:
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.add_(1.0)
        self.optimizer = workload_optimizer(self.model, self.bundle.model)

    def start(self, *, hand_off: bool = False) -> None:
        parallelize(self.model, self.optimizer, self.bundle, timeout_seconds=TIMEOUT_SECONDS, hand_off=hand_off)

    def steps(self, first: int, last: int) -> None:
        rng = random.Random(self.rank)
        for step in range(first, last):
            self.optimizer.zero_grad()
            loss = self.model(step)
            time.sleep(rng.choice((0, 0, 0.005)))
            loss.backward()
            clip_norm = self.bundle.model.clip_norm
            if clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip_norm)
            self.optimizer.step()

    def values(self) -> dict[str, Any]:
        drain(self.model)
        return {name: value.detach().tolist() for name, value in self.model.named_parameters()}

    def whole(self) -> dict[str, Any]:
        """Parameters and the whole state of the optimizer; the last of the training."""
        found = self.values()
        consolidate(self.model)
        return {**found, **plain(self.optimizer.state_dict())}

    def held(self) -> dict[str, Any]:
        """What the engine keeps, by kind and place, and `whole`; the last of the training."""
        session = session_of(self.model)
        execution = session.training.execution
        assert execution is not None, "it is not handed off"
        kept = {f"{one.what} {one.place}": one.values.tolist() for one in execution.kept(session.step)}
        factors = {" ".join(path): factor.tolist() for path, factor in execution.kept_factors()}
        return {**kept, **factors, **self.whole()}


@contextlib.contextmanager
def running(bundle: str, *, hand_off: bool = False, strange: bool = False) -> Iterator[Run]:
    made = Run(bundle, strange=strange)
    made.start(hand_off=hand_off)
    try:
        yield made
    finally:
        with contextlib.suppress(AutosyncError):
            release(made.model)


def plain(state: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's state as values that JSON can say."""
    return {
        f"{number} {key}": value.tolist() if isinstance(value, torch.Tensor) else value
        for number, entry in sorted(state["state"].items())
        for key, value in sorted(entry.items())
    }


def straight(bundle: str, num_steps: int, *, hand_off: bool = False) -> dict[str, Any]:
    """All steps in one go."""
    with running(bundle, hand_off=hand_off) as run:
        run.steps(0, num_steps)
        return run.whole()


def saves(bundle: str, num_steps: int, folder: str, *, hand_off: bool = False) -> str:
    """Some steps, then a checkpoint, which training does not mind."""
    with running(bundle, hand_off=hand_off) as run:
        run.steps(0, num_steps)
        for _ in range(2):
            # The second one takes the first one's place.
            save(run.model, folder)
        if run.rank == 0:
            torch.save(run.model.state_dict(), f"{folder}.pt")
        run.steps(num_steps, num_steps + 1)
    return ""


def goes_on(bundle: str, num_steps: int, folder: str, *, hand_off: bool = False) -> dict[str, Any]:
    """The rest of the steps, in a new process."""
    run = Run(bundle, strange=True)
    run.model.load_state_dict(torch.load(f"{folder}.pt"))
    run.start(hand_off=hand_off)
    try:
        first = load(run.model, folder)
        run.steps(first, num_steps)
        return run.whole()
    finally:
        release(run.model)


def saves_held(bundle: str, num_steps: int, folder: str) -> dict[str, Any]:
    """Some steps, then a checkpoint; what this rank holds then."""
    with running(bundle) as run:
        run.steps(0, num_steps)
        save(run.model, folder)
        if run.rank == 0:
            torch.save(run.model.state_dict(), f"{folder}.pt")
        return run.held()


def loads_held(bundle: str, folder: str) -> dict[str, Any]:
    """What this rank holds when it has loaded a checkpoint."""
    run = Run(bundle, strange=True)
    run.model.load_state_dict(torch.load(f"{folder}.pt"))
    run.start()
    try:
        load(run.model, folder)
        return run.held()
    finally:
        release(run.model)


def goes_back(bundle: str, first: int, last: int, folder: str) -> str:
    """In the midst of training, go back to what was saved: what came after is as if it had never been."""
    with running(bundle) as run:
        run.steps(0, first)
        save(run.model, folder)
        before = copy.deepcopy(run.model.state_dict())
        # Where each worker has its own parameters between two averages, the first one's are those that are saved.
        objects = [before]
        dist.broadcast_object_list(objects)
        run.steps(first, last)
        expected = run.values()
        run.model.load_state_dict(objects[0])
        load(run.model, folder)
        run.steps(first, last)
        return "" if run.values() == expected else "apart"


def by_state_dicts(bundle: str, first: int, last: int) -> dict[str, Any]:
    """As DDP's users do it: consolidate, state_dict on the first rank, load_state_dict on all, before and after."""
    found: dict[str, Any] = {}
    with running(bundle) as run:
        run.steps(0, first)
        found["refused"] = raised(run.optimizer.state_dict)
        consolidate(run.model, to=0)
        if run.rank == 0:
            run.optimizer.state_dict()
        else:
            found["refused elsewhere"] = raised(run.optimizer.state_dict)
        consolidate(run.model)
        saved = copy.deepcopy((run.model.state_dict(), run.optimizer.state_dict()))
        run.steps(first, last)
        found["refused again"] = raised(run.optimizer.state_dict)
        expected = run.values()
        run.model.load_state_dict(saved[0])
        # torch takes these very tensors, and updates them.
        run.optimizer.load_state_dict(copy.deepcopy(saved[1]))
        run.steps(first, last)
        found["in the same"] = run.values() == expected
    again = Run(bundle, strange=True)
    again.model.load_state_dict(saved[0])
    again.optimizer.load_state_dict(copy.deepcopy(saved[1]))
    again.start()
    again.steps(first, last)
    found["in another"] = again.values() == expected
    # The state goes on in the next training of the same objects.
    consolidate(again.model)
    release(again.model)
    found["released"] = plain(again.optimizer.state_dict())
    return found


def loads_a_model(bundle: str, first: int, last: int) -> str:
    """Other parameters are loaded in the midst of training: everything goes on from them, as if it began there."""
    with running(bundle) as run:
        run.steps(0, first)
        state = {name: torch.full_like(value, 0.25) for name, value in run.model.state_dict().items()}
        run.model.load_state_dict(state)
        run.steps(first, last)
        found = run.values()
    again = Run(bundle)
    again.model.load_state_dict(state)
    again.start()
    again.steps(first, last)
    expected = again.values()
    release(again.model)
    return ", ".join(name for name, value in found.items() if value != expected[name])


def refusals(bundles: dict[str, str], folder: str) -> dict[str, str]:
    """What does not fit a checkpoint, by the bundle's name. It stays as it was."""
    found = {}
    for name, bundle in bundles.items():
        run = Run(bundle, strange=name == "strange")
        if name != "strange":
            with contextlib.suppress(RuntimeError):
                run.model.load_state_dict(torch.load(f"{folder}.pt"))
        if name == "optimizer":
            run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
        if name == "groups":
            halves = [[parameter] for parameter in run.model.parameters()]
            run.optimizer = torch.optim.Adam([{"params": half} for half in halves], lr=0.1)
        run.start()
        before = run.values()
        found[name] = raised(lambda model=run.model: load(model, folder))
        if run.values() != before:
            found[name] += " and changed"
        release(run.model)
    return found


def counts_steps(bundle: str, folder: str) -> list[int]:
    """The steps that a checkpoint tells of, after two synchronised passes and one step of the optimizer; and later."""
    with running(bundle) as run:
        run.model(0).backward()
        run.model(1).backward()
        run.optimizer.step()
        save(run.model, folder)
        first = load(run.model, folder)
        run.steps(2, 3)
        save(run.model, folder)
        return [first, load(run.model, folder)]


def calls(bundle: str, folder: str) -> dict[str, str]:
    """Calls that are no calls of all workers alike, or in the midst of a step."""
    found = {}
    with running(bundle) as run:
        run.steps(0, 1)
        found["another path"] = raised(lambda: load(run.model, f"{folder}-{run.rank}"))
        found["no folder"] = raised(lambda: save(run.model, f"{bundle}"))
        found["two folders"] = raised(lambda: save(run.model, f"{folder}-{run.rank}"))
        found["left behind"] = str(Path(f"{folder}-{run.rank}").exists())
        what = save if run.rank else load
        found["another call"] = raised(lambda: what(run.model, folder))
        run.optimizer.zero_grad()
        run.model(1).backward()
        found["in the midst"] = raised(lambda: save(run.model, folder))
        run.optimizer.step()
        save(run.model, folder)
        found["to nobody"] = raised(lambda: consolidate(run.model, to=7))
        found["to one or all"] = raised(lambda: consolidate(run.model, to=run.rank or None))
    found["not parallel"] = raised(lambda: autosync.save(run.model, folder))
    return found


def killed(bundle: str, folder: str, rank: int, line: int) -> str:
    """Two checkpoints, each after two steps; in the second one a rank is killed at some line of saving."""
    with running(bundle) as run:
        for step in (0, 2):
            run.steps(step, step + 2)
            if run.rank == 0:
                torch.save(run.model.state_dict(), f"{folder}-{step + 2}.pt")
            dies = killed_at(line) if step and run.rank == rank else contextlib.nullcontext()
            with dies:
                save(run.model, folder)
    return "alive"


def goes_on_from_what_is_there(bundle: str, folder: str, num_steps: int) -> dict[str, Any]:
    """After ranks were killed."""
    Path(f"{folder}.pt").unlink(missing_ok=True)
    dist.barrier()
    if dist.get_rank() == 0:
        os.link(f"{folder}-{read(Path(folder)).step}.pt", f"{folder}.pt")
    dist.barrier()
    return goes_on(bundle, num_steps, folder)
