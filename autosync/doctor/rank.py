"""`python -m autosync.doctor.rank train.py ARGS` is a rank of the doctor: it runs a script and watches its steps.

`autosync doctor` starts it on every rank. After enough steps, the rank prints what it noted and ends. Its settings are
in the environment, because the arguments are the script's.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosync import documents
from autosync.doctor.evidence import KIND, VERSION, InterfaceTraffic, Processors, RankEvidence
from autosync.doctor.post import BUDGET_VARIABLE, STEPS_VARIABLE, in_lines
from autosync.doctor.watch import WARMUP_STEPS, Watch
from autosync.errors import InputError, OperationError
from autosync.script.program import MainProgram
from autosync.specs.background_load import BackgroundLoad
from autosync.trials.probe.machine import interface_bytes

LEAST_STEPS = 2
_NUM_SMALL = 6
_NUM_LARGE = 2
_ITEM_BYTES = 4
_PARTING_SECONDS = 0.3
_KEPT_SHARE = 0.1
"""The share of the budget that is kept, because further steps may be slower, and evidence has to be printed."""
_NUM_AFTER = 3
"""The messages after the last step take no longer than this number of steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimedMessages:
    """The times of all-reduces after the last step; None if there was none."""

    small_seconds: float | None = None
    large_bytes: int = 0
    large_seconds: float | None = None


class RankDoctor:
    """Decides when this rank has seen enough, and prints its evidence."""

    def __init__(self, num_steps: int, budget_seconds: float) -> None:
        self._num_steps = num_steps
        self._budget_seconds = budget_seconds
        self._begun = time.perf_counter() - _age_seconds()
        self._load: BackgroundLoad | None = None
        self._waited: float | None = None
        self._chosen_interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
        self._carried: Mapping[str, int] = {}
        self._rank = 0

    def stepped(self, watch: Watch) -> None:
        """React to the end of a step: begin to count after the warm-up, and end this process after the last step."""
        number = len(watch.notes.steps)
        if number == WARMUP_STEPS:
            self._begin(watch)
        elif number == WARMUP_STEPS + self._num_steps:
            self._end(watch)

    def _begin(self, watch: Watch) -> None:
        """Agree with the other ranks on the number of steps that the budget allows, and read the meters."""
        step_seconds = max(watch.notes.steps[-1].seconds, 1e-6)
        spent = time.perf_counter() - self._begun
        wanted = affordable_steps(self._num_steps, self._budget_seconds, spent, step_seconds)
        agreed = torch.tensor([wanted])
        dist.all_reduce(agreed, op=dist.ReduceOp.MIN, group=watch.ddp.process_group)
        self._num_steps = int(agreed.item())
        self._rank = dist.get_rank()
        watch.notes.keeps_gradients = self._rank == 0
        self._load = BackgroundLoad() if sys.platform == "linux" else None
        self._waited = _waited_seconds()
        self._carried = interface_bytes() if sys.platform == "linux" else {}
        self._since = time.perf_counter()

    def _end(self, watch: Watch) -> None:
        """Print the evidence and end this process at once, without the rest of the script."""
        processors, traffic = self._processors(), self._traffic()
        self._send(watch, processors, traffic, self._timed_messages(watch))
        # The last bytes of this rank may still be on their way to others, and an exit would cut them off.
        time.sleep(_PARTING_SECONDS)
        os._exit(0)

    def script_ended(self, watch: Watch) -> bool:
        """Print the evidence of a script that ended before all its steps were seen; return whether it is enough."""
        # No forward pass has followed the last step.
        watch.notes.step_ends()
        if len(watch.notes.steps) < WARMUP_STEPS + LEAST_STEPS:
            return False
        # The script has ended its process group by now, so no message can be timed.
        self._send(watch, self._processors(), self._traffic(), _TimedMessages())
        return True

    def _send(
        self,
        watch: Watch,
        processors: Processors | None,
        traffic: InterfaceTraffic | None,
        timed: _TimedMessages,
    ) -> None:
        evidence = RankEvidence(
            rank=self._rank,
            steps=tuple(watch.notes.steps[WARMUP_STEPS:]),
            settings=watch.settings(),
            variables=watch.variables() if self._rank == 0 else (),
            processors=processors,
            traffic=traffic,
            small_message_seconds=timed.small_seconds,
            large_message_bytes=timed.large_bytes,
            large_message_seconds=timed.large_seconds,
        )
        for line in in_lines(evidence.rank, documents.dump(evidence, kind=KIND, version=VERSION)):
            # Not print, because the script may have replaced stdout.
            os.write(1, line)

    def _timed_messages(self, watch: Watch) -> _TimedMessages:
        """Time a small all-reduce, and one of the bytes that a pass sends, which takes no longer than such a pass."""
        group = watch.ddp.process_group
        sizes = [sum(message.num_bytes for message in one.messages) for one in watch.notes.steps[-1].passes]
        # Ranks may differ in the rows of sparse gradients.
        agreed = torch.tensor([max(sizes)])
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=group)
        small = _message_seconds(group, 1, _NUM_SMALL)
        count = int(agreed.item()) // _ITEM_BYTES
        if count <= 1:
            return _TimedMessages(small_seconds=small)
        large = _message_seconds(group, count, _NUM_LARGE)
        return _TimedMessages(small_seconds=small, large_bytes=count * _ITEM_BYTES, large_seconds=large)

    def _processors(self) -> Processors | None:
        """Return the use of this machine's processors since the warm-up; None if the system does not tell."""
        if self._load is None:
            return None
        seconds = time.perf_counter() - self._since
        usage = self._load.usage()
        waited = _waited_seconds()
        return Processors(
            machine=_machine(),
            own=usage.own_share,
            others=usage.share,
            waited_seconds=None if waited is None or self._waited is None else waited - self._waited,
            seconds=seconds,
        )

    def _traffic(self) -> InterfaceTraffic | None:
        """Return the interface that carried most bytes since the warm-up; None if the launcher chose none."""
        if not self._carried or not self._chosen_interface:
            return None
        carried = {name: total - self._carried.get(name, 0) for name, total in interface_bytes().items()}
        used = max(carried, key=lambda name: carried[name])
        return InterfaceTraffic(
            used=used,
            used_bytes=max(carried[used], 0),
            chosen=self._chosen_interface,
            chosen_bytes=sum(max(carried.get(name, 0), 0) for name in self._chosen_interface.split(",")),
        )


def affordable_steps(num_steps: int, budget_seconds: float, spent_seconds: float, step_seconds: float) -> int:
    """Return how many further steps fit into the budget, up to `num_steps`; at least the fewest that are enough."""
    left = (1 - _KEPT_SHARE) * budget_seconds - spent_seconds - _PARTING_SECONDS
    return max(LEAST_STEPS, min(num_steps, int(left / step_seconds) - _NUM_AFTER))


def _age_seconds() -> float:
    """Return how long ago this process started; 0 if the system does not tell."""
    if sys.platform != "linux":
        return 0.0
    ticks = int(Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _waited_seconds() -> float | None:
    """Return how long this thread was ready to run without a processor; None if the system does not tell."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


def _machine() -> str:
    """Return a name of this machine that lasts until its next start and is the same in all its containers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename


def _message_seconds(group: Any, count: int, repeats: int) -> float:
    """Return the shortest time of an all-reduce of that many numbers."""
    numbers, times = torch.zeros(count), []
    for _ in range(repeats):
        begun = time.perf_counter()
        dist.all_reduce(numbers, group=group)
        times.append(time.perf_counter() - begun)
    return min(times)


def main(arguments: Sequence[str]) -> int:
    """Run a script until enough of its steps were seen, then end the process. Return an exit code if too few were."""
    doctor = RankDoctor(int(os.environ[STEPS_VARIABLE]), float(os.environ[BUDGET_VARIABLE]))
    watch = Watch(doctor.stepped)
    try:
        program = MainProgram(arguments)
        with watch.open():
            try:
                program.run()
            except SystemExit as end:
                if end.code not in {None, 0}:
                    raise
    except (InputError, OperationError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2 if isinstance(error, InputError) else 1
    if doctor.script_ended(watch):
        return 0
    sys.stderr.write(f"error: {_too_few(program.name, watch)}\n")
    return 1


def _too_few(name: str, watch: Watch) -> str:
    if watch.ddp is None:
        return f"{name} has ended and trained no torch.nn.parallel.DistributedDataParallel"
    return (
        f"{name} has ended after {len(watch.notes.steps)} steps of its optimizer: doctor needs {LEAST_STEPS} "
        f"besides the first {WARMUP_STEPS}, which do not count"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
