"""Whole plans trained in one process, to be held against the reference.

Sessions, engines and local work are the real ones, a thread for each rank; transfers meet in memory instead of on the
wire, after random delays. Gradients depend on the parameters in use, so a value that comes too early or too late
changes everything after it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import nn

from autosync.plan.reference.interpreter import Outcome, interpret
from autosync.plan.reference.workload import Workload
from autosync.plan.types import Local, Transfer
from autosync.runtime.engine.device import DevicePlacement, Streams
from autosync.runtime.engine.engine import Engine
from autosync.runtime.engine.execution import Execution
from autosync.runtime.engine.rank_script import Script, script_of
from autosync.runtime.local.engine_optimizer import EngineOptimizer
from autosync.runtime.local.engine_updates import engine_updates
from autosync.runtime.local.optimizer_facts import StepScale, facts_of, options_of
from autosync.runtime.memory.kept_state import Place
from autosync.runtime.memory.regions import Memory
from autosync.runtime.session.session import Session
from autosync.runtime.session.support import unsupported
from autosync.runtime.wire.links import Links
from autosync.runtime.wire.transfers import Mover
from autosync.runtime.wire.varying_contents import Contents, are_contents
from autosync.specs.model import DType
from autosync.strategy.bundle import Bundle
from autosync.strategy.codecs import Cast
from autosync.strategy.parts import PartName
from tests.helpers.collectives import carry_out, chunk
from tests.helpers.example_plans import Example
from tests.helpers.workload_model import WorkloadModel, workload_optimizer

NUM_STEPS = 7
LIMIT_SECONDS = 20.0

Hold = Callable[["World", Transfer, int], None]
MakeEngine = Callable[["Rank", Script, Streams | None], Engine]


@dataclass
class Meeting:
    """One transfer in one group: who has come, and whether it has taken place."""

    come: dict[int, Rank] = field(default_factory=dict)
    is_over: threading.Event = field(default_factory=threading.Event)


class World:
    """All ranks of a plan in training. `hold` is called by every member before a transfer.

    `make_engine` makes a rank's engine (for its script, and the streams of its device) where it is no usual one.
    """

    def __init__(
        self,
        example: Example,
        *,
        seed: int = 0,
        hold: Hold | None = None,
        dtype: DType = "float64",
        device: str = "cpu",
        make_engine: MakeEngine | None = None,
    ) -> None:
        self.example = with_dtype(example, dtype)
        self.plan = self.example.plan()
        self.hold = hold
        self.device = torch.device(device)
        self.make_engine = make_engine or Rank.usual_engine
        self.rng = random.Random(seed)
        self.workload = Workload(model=self.example.model, seed=seed)
        self.meetings: dict[tuple[int, tuple[int, ...], int], Meeting] = {}
        self.lock = threading.Lock()
        self.steps_called = threading.Condition()
        self.num_called = [0] * len(self.plan.ranks)
        self.errors: list[BaseException] = []
        self.options: list[Any] = []
        self.ranks = [Rank(self, rank.index) for rank in self.plan.ranks]

    def train(self, num_steps: int = NUM_STEPS) -> list[Rank]:
        """The workers, after so many steps."""
        threads = [threading.Thread(target=rank.run, args=(num_steps,), daemon=True) for rank in self.ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * LIMIT_SECONDS)
        assert not any(thread.is_alive() for thread in threads)
        if self.errors:
            raise self.errors[0]
        return self.ranks[: self.plan.num_workers]

    def wait_called(self, rank: int, iteration: int) -> None:
        """Wait until a rank has called an iteration's step."""
        with self.steps_called:
            assert self.steps_called.wait_for(lambda: self.errors or self.num_called[rank] > iteration, LIMIT_SECONDS)

    def move(self, index: int, iteration: int, rank: Rank) -> None:
        """A member comes to a transfer; the last one carries it out."""
        transfer = self.plan.operations[index]
        assert isinstance(transfer, Transfer)
        group = next(group for group in transfer.groups if rank.number in group)
        if self.hold is not None:
            self.hold(self, transfer, iteration)
        time.sleep(self.rng.choice((0, 0, 0.001)))
        if len(group) == 1:
            return
        with self.lock:
            meeting = self.meetings.setdefault((index, group, iteration), Meeting())
            meeting.come[rank.number] = rank
            is_last = len(meeting.come) == len(group)
        if not is_last:
            assert meeting.is_over.wait(LIMIT_SECONDS), f"nobody else comes to {transfer}"
            return
        members = [meeting.come[number] for number in group]
        if are_contents(self.plan, transfer):
            self._move_contents(transfer, group, members, iteration)
        else:
            self._move_numbers(transfer, members, iteration)
        if self.device.type == "cuda":
            # Of what one rank's stream does others know only when it is done.
            torch.cuda.current_stream(self.device).synchronize()
        meeting.is_over.set()

    def _move_numbers(self, transfer: Transfer, members: list[Rank], iteration: int) -> None:
        kind = self.plan.regions[transfer.regions[0]].kind
        if kind == "param" and transfer.collective == "all_reduce":
            for one in members:
                one.memory.load(transfer.regions)
        buffers = [one.memory.view(transfer.regions, iteration) for one in members]
        for one, buffer in zip(members, buffers, strict=True):
            if kind in ("grad", "encoded") and not one.is_worker and transfer.collective in ("reduce", "all_reduce"):
                buffer.zero_()
        if transfer.within:
            buffers = [
                chunk(buffer, next(g for g in transfer.within if one.number in g), one.number)
                for one, buffer in zip(members, buffers, strict=True)
            ]
        carry_out(transfer, buffers)
        if kind == "param":
            for one in members:
                one.memory.store(transfer.regions)

    def _move_contents(self, transfer: Transfer, group: tuple[int, ...], members: list[Rank], iteration: int) -> None:
        sent = [one.contents.outgoing(transfer, group, iteration) for one in members]
        for one, given in zip(members, sent, strict=True):
            if one.is_worker and self.plan.regions[transfer.regions[0]].kind == "encoded":
                assert len(given) == transfer.num_bytes
        # One behind the other, as they lie in a gather's buffer.
        gathered = torch.cat([torch.zeros(3, dtype=torch.uint8), *[one.cpu() for one in sent]]).to(self.device)[3:]
        arrived = torch.split(gathered, [len(one) for one in sent])
        for one in members[:1] if transfer.collective == "gather_v" else members:
            one.contents.arrived(transfer, group, iteration, arrived)


class Rank:
    """One rank: a session with a model whose gradients are the workload's, or a mere server."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        plan, spec = world.plan, world.example.model
        self.is_worker = plan.ranks[number].role == "worker"
        self.model = WorkloadModel(world.workload, number).to(world.device)
        self.optimizer = workload_optimizer(self.model, spec)
        parameters = dict(self.model.named_parameters())
        updates = engine_updates(plan)
        names = {id(parameter): name for name, parameter in parameters.items()}
        self.source = (
            EngineOptimizer.of_user(self.optimizer, parameters)
            if self.is_worker
            else EngineOptimizer.of_facts(facts_of(self.optimizer, names))
        )
        self.execution = Execution(
            plan,
            parameters if self.is_worker else {name: one.detach() for name, one in parameters.items()},
            links=cast(Links, NoLinks(number)),
            updates=updates,
            optimizer=self.source if updates.operations else None,
        )
        self.memory: Memory = self.execution.memory
        self.contents = Contents(plan, self.memory, rank=number)
        self.execution._mover = cast(Mover, Meets(world, self))
        placement = DevicePlacement.of(plan, parameters)
        script = script_of(plan, number, len(spec.variables), updates, in_one_order=placement.in_one_order)
        self.engine = world.make_engine(self, script, placement.streams(script))
        self.session: Session | None = None
        if self.is_worker:
            bundle = Bundle(
                strategy=world.example.strategy,
                model=spec,
                cluster=world.example.cluster,
                strategy_id="",
                plan_id="",
            )
            self.session = Session(
                self.model, self.optimizer, bundle, plan=plan, execution=self.execution, engine=self.engine
            )

    def usual_engine(self, script: Script, streams: Streams | None) -> Engine:
        """The engine of a rank."""
        return Engine(
            self.world.plan,
            script,
            self.execution,
            rank=self.number,
            timeout_seconds=LIMIT_SECONDS,
            streams=streams,
        )

    def run(self, num_steps: int) -> None:
        """This rank's training."""
        try:
            if self.is_worker:
                self._train(num_steps)
            else:
                self._serve(num_steps)
        except BaseException as error:  # noqa: BLE001 - the test must hear of it
            self.world.errors.append(error)
            if self.session is not None:
                self.session.leave_to_parent()
                # Otherwise it refuses steps of optimizers in later tests, whose parameters may have the same ids.
                for hook in self.session._step.guard._hooks:
                    hook.remove()
            with self.world.steps_called:
                self.world.steps_called.notify_all()

    def _train(self, num_steps: int) -> None:
        clip_norm = self.world.example.model.clip_norm
        self.optimizer.register_step_pre_hook(self._tell)
        for step in range(num_steps):
            self.optimizer.zero_grad()
            self.model(step).backward()
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), clip_norm)
            self.optimizer.step()
        assert self.session is not None
        self.session.drain()
        pending = self.session._step.pending
        self.shared = frozenset() if pending is None else pending.shared()
        self.values = {name: value.detach().to("cpu", copy=True) for name, value in self.model.named_parameters()}
        kept = self.execution.kept(self.session.step)
        self.kept = {f"{held.what} {held.place}": held.values.to("cpu", copy=True) for held in kept}
        self.session.close()

    def _tell(self, *_: Any) -> None:
        with self.world.steps_called:
            if self.number == 0:
                self.world.options.append(options_of(self.optimizer))
            self.world.num_called[self.number] += 1
            self.world.steps_called.notify_all()

    def _serve(self, num_steps: int) -> None:
        for step in range(num_steps):
            self.engine.begin()
            self.world.wait_called(0, step)
            # The workers' script clips in every step, if the task does.
            clips = self.world.example.model.clip_norm is not None
            self.source.options.put(step, self.world.options[step], StepScale(clips=clips))
            self.engine.step_called()
            self.engine.wait_due()
        self.engine.wait_done()
        self.engine.close()


@dataclass
class Meets:
    """A rank's mover."""

    world: World
    rank: Rank

    def run(self, index: int, iteration: int, _: Callable[[], int | None]) -> None:
        self.world.move(index, iteration, self.rank)

    def waits_its_turn(self, _: int, __: int) -> bool:
        return True

    def close(self) -> None:
        return


class NoLinks:
    """There is no wire."""

    heard_at = 0.0

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def abort(self) -> None:
        return

    def close(self) -> None:
        return


def with_dtype(example: Example, dtype: DType) -> Example:
    """The same with variables of another type."""
    variables = tuple(replace(variable, dtype=dtype) for variable in example.model.variables)
    return replace(example, model=replace(example.model, variables=variables))


def reference(world: World, num_steps: int = NUM_STEPS) -> Outcome:
    return interpret(world.plan, world.workload, num_steps=num_steps, rng=random.Random(1))


def check(
    example: Example,
    *,
    seed: int = 0,
    hold: Hold | None = None,
    num_steps: int = NUM_STEPS,
    device: str = "cpu",
    make_engine: MakeEngine | None = None,
) -> None:
    """Every worker's parameters are the reference's, and so is what error feedback holds back.

    The reference does not round sums to half the size, so what is cast is alike up to that.
    """
    world = World(example, seed=seed, hold=hold, device=device, make_engine=make_engine)
    assert unsupported(world.plan) == []
    workers = world.train(num_steps)
    for rank in workers:
        # A step waits for parameters whose memory seems to be shared; the engine's own tensors do not count.
        assert not rank.shared, f"rank {rank.number} takes {sorted(rank.shared)} for shared"
    expected = reference(world, num_steps)
    loose = _cast_variables(example)
    for rank, values in zip(workers, expected.parameters, strict=True):
        for name, value in values.items():
            difference = (rank.values[name] - torch.from_numpy(value)).norm() / (1 + torch.from_numpy(value).norm())
            assert difference < (2e-2 if name in loose else 1e-11), f"rank {rank.number}: {name} by {difference:.2g}"
    residuals = 0
    for (number, index), held in expected.residuals.items():
        region = world.plan.regions[index]
        place = Place.of(world.plan.parts[region.part], region.start, region.stop)
        found = workers[number].kept.get(f"residual {place}")
        if found is not None:
            residuals += 1
            assert (found - torch.from_numpy(held)).norm() < (
                1.0 if world.plan.parts[region.part].variable.name in loose else 1e-9
            ), region
    fed_back = any(
        isinstance(one, Local) and one.kind == "encode" and getattr(one.settings, "error_feedback", False)
        for one in world.plan.operations
    )
    assert bool(residuals) == fed_back


def _cast_variables(example: Example) -> set[str]:
    """Variables that are cast; where gradients are clipped together, all."""
    found = {
        PartName.parse(part).variable
        for message in example.strategy.messages
        if isinstance(message.codec, Cast)
        for part in message.parts
    }
    return {variable.name for variable in example.model.variables} if found and example.model.clip_norm else found
