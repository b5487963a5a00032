"""A soak of the trial service: `python benchmarks/trial_faults.py --faults 100 --seed 1 > faults.json`.

One service, one failure after another, each at a random moment of a trial and on a random rank. Every trial must end
as a recorded failure of the right kind within its limit (a rank that dies between two trials must hurt neither), the
next trial must run, a fixed strategy must be measured alike before all faults, in between and after them, and nothing
may be left at the end: no process, namespace, interface, socket, open file, thread or file but the ranks' logs.

What a cluster has not is left out there: links and ports of its own with `--cluster local`. Ends with 1 where anything
of the above does not hold. `task` below is the task that is trained; it goes wrong when a file says so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from autosync import Task
from autosync.datasets.schema import seconds_of_steps
from autosync.errors import AutosyncError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model, model_of
from autosync.testbed import live
from autosync.trials.contestant import Contestant
from autosync.trials.entrants import entrants
from autosync.trials.policy import Policy, measure
from autosync.trials.service import TrialFailed, TrialService
from autosync.trials.statistics import Interval, round_ratio

FAULT_VARIABLE = "TRIAL_FAULT_FILE"
LATEST_SECONDS = 1.5
"""The latest moment of a fault, from the beginning of its trial."""
SLACK_SECONDS = 10.0
"""What telling and ending may take beyond a limit of its own, on a machine that has other things to do."""
LEAST_DIFFERENCE = 0.01
NUM_ROUNDS = 6
"""How often the fixed strategy is measured before, in between and after: as many as a 95 % interval needs."""
POLICY = Policy(min_steps=12, max_steps=12, budget_seconds=20.0)


class _Victim(nn.Module):
    """3 MB of parameters, and a forward pass that goes wrong on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fault = Path(os.environ.get(FAULT_VARIABLE, "/nowhere"))
        if fault.exists():
            rank, how = json.loads(fault.read_text())
            if str(rank) == os.environ.get("RANK"):
                _go_wrong(how)
        y: torch.Tensor = self.layers(x)
        return y


def _go_wrong(how: str) -> None:
    if how == "raise":
        raise ValueError("no such luck")
    if how == "hang":
        time.sleep(3600)
    if how == "abort":
        os.abort()
    if how == "out of memory":
        # Of this rank's address space, not of the machine's memory.
        resource.setrlimit(resource.RLIMIT_AS, (2**20, resource.RLIM_INFINITY))
        torch.empty(2**30)


def task() -> Task:
    """What is trained."""
    return Task(
        name="victim",
        model=_Victim,
        batch=lambda generator: torch.randn(4, 512, generator=generator),
        loss=lambda model, x: model(x).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way to fail: as which kinds of failure it may be told (none: the trial must be measured), and how soon."""

    kinds: frozenset[str]
    waits_for_timeout: bool = False
    needs_testbed: bool = False


FAULTS = {
    "killed": Fault(kinds=frozenset({"lost_rank"})),
    "killed between trials": Fault(kinds=frozenset()),
    "stopped": Fault(kinds=frozenset({"timeout"}), waits_for_timeout=True),
    "link down": Fault(kinds=frozenset({"timeout", "raised"}), waits_for_timeout=True, needs_testbed=True),
    "port taken": Fault(kinds=frozenset({"raised", "launch"}), needs_testbed=True),
    "raise": Fault(kinds=frozenset({"raised"})),
    "hang": Fault(kinds=frozenset({"timeout"}), waits_for_timeout=True),
    "abort": Fault(kinds=frozenset({"lost_rank"})),
    "out of memory": Fault(kinds=frozenset({"raised"})),
    "does not fit": Fault(kinds=frozenset({"refused"})),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cluster", default="4-hosts", help="a cluster, or `local`: two ranks on this machine")
    parser.add_argument("--strategy", default="ddp")
    parser.add_argument("--timeout-seconds", type=float, default=12.0, help="the limit of each request to the ranks")
    parser.add_argument("--limit-seconds", type=float, default=3600.0, help="begin no fault after this time")
    options = parser.parse_args()
    # A name of its own: nobody else's testbed is this one, and what is left can be told from others'.
    cluster = load_cluster("local-2" if options.cluster == "local" else options.cluster)
    cluster = replace(cluster, name=f"faults-{secrets.token_hex(4)}")
    with tempfile.TemporaryDirectory(prefix="trial-faults-") as folder:
        result = Soak(cluster, Path(folder), options).run()
    print(json.dumps(result, indent=2))
    return 0 if result["holds"] else 1


class Soak:
    """The service, what is done to it and what came of that."""

    def __init__(self, cluster: ClusterSpec, folder: Path, options: argparse.Namespace) -> None:
        self._cluster = cluster
        self._folder = folder
        self._options = options
        self._lots = random.Random(options.seed)
        self._file = folder / "fault"
        self._left_out = [name for name, one in FAULTS.items() if one.needs_testbed and cluster.launcher != "testbed"]
        temporary = folder / "temporary"
        temporary.mkdir()
        # The ranks inherit both: by the first they are found, in the second they leave what they forget.
        os.environ[FAULT_VARIABLE] = str(self._file)
        os.environ["TMPDIR"] = str(temporary)

    def run(self) -> dict[str, Any]:
        target = f"{__file__}:task"
        model = model_of(target)
        (self._contestant,) = entrants([self._options.strategy], model, self._cluster, is_replayed=False)
        # Made for another model: whoever prepares it is refused.
        other = load_model("mobilenet_v2")
        (self._misfit,) = entrants([self._options.strategy], other, self._cluster, is_replayed=False)
        before = Belongings.now(self._folder)
        began = time.monotonic()
        self._service = TrialService(
            target=target,
            model=model,
            cluster=self._cluster,
            folder=self._folder / "trials",
            timeout_seconds=self._options.timeout_seconds,
        )
        with self._service:
            first = [self._measured() for _ in range(NUM_ROUNDS)]
            trials, between = self._trials(began)
            last = [self._measured() for _ in range(NUM_ROUNDS)]
        left = Belongings.now(self._folder).beyond(before)
        ratios = {"after": _ratio(first, last)}
        if len(between) == NUM_ROUNDS:
            ratios["between"] = _ratio(first, between)
        wrong = [trial for trial in trials if trial["wrong"]]
        alike = all(_is_alike(ratio) for ratio in ratios.values())
        return {
            "holds": not wrong and not left and alike,
            "cluster": self._options.cluster,
            "seed": self._options.seed,
            "num_faults": len(trials),
            "left_out": self._left_out,
            "outcomes": {name: _told(name, trials) for name in FAULTS},
            "wrong": wrong,
            "left_over": left,
            "times_as_long_as_before": {name: _interval(ratio) for name, ratio in ratios.items()},
            "median_seconds": {
                "before": [float(np.median(one)) for one in first],
                "between": [float(np.median(one)) for one in between],
                "after": [float(np.median(one)) for one in last],
            },
            "seconds": round(time.monotonic() - began, 1),
            "trials": trials,
        }

    def _measured(self) -> tuple[float, ...]:
        """The steps of the fixed strategy in a trial of its own."""
        measurement = measure(self._service, self._contestant, POLICY)
        return seconds_of_steps(measurement.step_seconds)

    def _trials(self, began: float) -> tuple[list[dict[str, Any]], list[tuple[float, ...]]]:
        trials: list[dict[str, Any]] = []
        between: list[tuple[float, ...]] = []
        for number, name in enumerate(self._names()):
            if time.monotonic() - began > self._options.limit_seconds:
                break
            trials.append(self._trial(name))
            print(f"{number + 1} of {self._options.faults}: {_in_words(trials[-1])}", file=sys.stderr, flush=True)
            # Spread over the whole soak.
            while len(between) < NUM_ROUNDS and (len(between) + 1) * self._options.faults <= (number + 1) * NUM_ROUNDS:
                between.append(self._measured())
        return trials, between

    def _names(self) -> Iterator[str]:
        """As many of each as of any other, in random order."""
        names: list[str] = []
        while len(names) < self._options.faults:
            chosen = [name for name in FAULTS if name not in self._left_out]
            names += self._lots.sample(chosen, len(chosen))
        yield from names[: self._options.faults]

    def _trial(self, name: str) -> dict[str, Any]:
        """One trial in which that goes wrong, and one behind it in which nothing does."""
        fault = FAULTS[name]
        rank = self._lots.randrange(self._cluster.num_workers)
        injection = Injection(self._cluster, self._file, name, rank)
        contestant = self._misfit if name == "does not fit" else self._contestant
        moment = 0.0 if name in ("killed between trials", "port taken") else self._lots.uniform(0, LATEST_SECONDS)
        limit = (self._options.timeout_seconds if fault.waits_for_timeout else 0.0) + SLACK_SECONDS
        with injection.at(moment):
            kind, message = self._outcome(contestant, injection, is_measured=not fault.kinds)
        ended = time.monotonic()
        wrong = [f"told as {kind}"] if kind not in (fault.kinds or {"measured"}) else []
        # What does not fit is refused at once, before anything could happen to it.
        seconds = ended - injection.happened if injection.happened else None
        if fault.kinds and seconds is not None and seconds > limit:
            wrong.append(f"told after {seconds:.1f} s")
        wrong += [f"the fault could not be made: {injection.error}"] if injection.error else []
        try:
            self._service.prepare(self._contestant)
            self._service.run(self._contestant.name, 2)
            self._service.release(self._contestant.name)
        except TrialFailed as failure:
            wrong.append(f"the next trial fails: {failure.kind}: {failure.message}")
        return {
            "fault": name,
            "rank": rank,
            "moment_seconds": round(moment, 3),
            "kind": kind,
            "message": message,
            "seconds_to_tell": None if seconds is None else round(seconds, 3),
            "seconds_to_next_trial": round(time.monotonic() - ended, 3),
            "wrong": wrong,
        }

    def _outcome(self, contestant: Contestant, injection: Injection, *, is_measured: bool) -> tuple[str, str]:
        """How a trial ends that would go on for as long as a fault may take to be told."""
        deadline = time.monotonic() + LATEST_SECONDS + self._options.timeout_seconds + SLACK_SECONDS
        try:
            self._service.prepare(contestant)
            while time.monotonic() < deadline:
                self._service.run(contestant.name, 5)
                if is_measured and injection.happened:
                    break
            self._service.release(contestant.name)
        except TrialFailed as failure:
            return failure.kind, failure.message
        return "measured", ""


class Injection:
    """Makes one fault happen at its moment, and undoes what outlives the trial."""

    def __init__(self, cluster: ClusterSpec, file: Path, name: str, rank: int) -> None:
        self.happened: float | None = None
        self.error: str | None = None
        self._cluster = cluster
        self._file = file
        self._name = name
        self._rank = rank
        self._undo: Callable[[], object] = lambda: None
        self._timer: threading.Timer | None = None

    def at(self, moment: float) -> Injection:
        if moment:
            self._timer = threading.Timer(moment, self._happen)
        return self

    def __enter__(self) -> None:
        if self._timer is None:
            self._happen()
        else:
            self._timer.start()

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        self._undo()

    def _happen(self) -> None:
        try:
            self._make()
        except (AutosyncError, OSError, subprocess.SubprocessError) as error:
            self.error = f"{type(error).__name__}: {error}"
        self.happened = time.monotonic()

    def _make(self) -> None:
        match self._name:
            case "killed":
                os.kill(self._process(), signal.SIGKILL)
            case "killed between trials":
                descriptor = os.pidfd_open(self._process())
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                # Only once its last thread is gone can anybody know.
                select.select([descriptor], [], [], SLACK_SECONDS)
                os.close(descriptor)
            case "stopped":
                os.kill(self._process(), signal.SIGSTOP)
            case "link down":
                # The next launch puts the cable back.
                live.find(self._cluster).set_link(self._node, up=False)
            case "port taken":
                self._take_ports()
            case "does not fit":
                pass
            case how:
                written = self._file.with_suffix(".new")
                written.write_text(json.dumps([self._rank, how]))
                written.replace(self._file)
                self._undo = self._file.unlink

    @property
    def _node(self) -> str:
        return self._cluster.nodes[self._cluster.ranks[self._rank].node].name

    def _process(self) -> int:
        """The rank's process: the one of this soak that has that number in its environment."""
        for process in _processes_with(str(self._file)):
            environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            if process != os.getpid() and f"RANK={self._rank}".encode() in environment:
                return process
        raise OSError(f"rank {self._rank} is not running")

    def _take_ports(self) -> None:
        """Leave the rank's host two ports to choose from, and listen at both."""
        command = [*live.find(self._cluster).enter(self._node), sys.executable, "-c", _TAKE_PORTS]
        taker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert taker.stdin is not None
        assert taker.stdout is not None

        def give_back() -> None:
            # Its input ends, so it puts the range back and ends.
            taker.communicate(timeout=30)

        self._undo = give_back
        if taker.stdout.readline() != b"taken\n":
            raise OSError("the range of ports could not be set")


_TAKE_PORTS = """
import pathlib, socket, sys
limits = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
before = limits.read_text()
listeners = [socket.create_server(("", port)) for port in (30000, 30001)]
limits.write_text("30000 30001")
try:
    print("taken", flush=True)
    sys.stdin.read()
finally:
    limits.write_text(before)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Belongings:
    """What this soak has on the machine: by kind, things that can be told from all others."""

    found: dict[str, Counter[str]]

    @classmethod
    def now(cls, folder: Path) -> Belongings:
        mark = str(folder)
        own = Path("/proc/self")
        descriptors = (str(path.readlink()) for path in own.joinpath("fd").iterdir() if path.is_symlink())
        return cls(
            found={
                "process": Counter(str(process) for process in _processes_with(mark) if process != os.getpid()),
                "namespace": Counter(_names(Path("/run/netns"))),
                "testbed record": Counter(_names(Path("/run/autosync"))),
                "interface": Counter(_names(Path("/sys/class/net"))),
                "unix socket": Counter(line for line in _lines(own / "net/unix") if mark in line),
                "shared memory": Counter(_names(Path("/dev/shm"))),  # noqa: S108 - looked at, not written
                "open file": Counter(name.partition(":")[0] for name in descriptors),
                "thread": Counter(thread.name for thread in threading.enumerate()),
                "file": Counter(str(path.relative_to(folder)) for path in folder.rglob("*") if not _may_stay(path)),
            }
        )

    def beyond(self, before: Belongings) -> dict[str, list[str]]:
        """What is here now and was not before."""
        left = {kind: sorted((names - before.found[kind]).elements()) for kind, names in self.found.items()}
        return {kind: names for kind, names in left.items() if names}


def _may_stay(path: Path) -> bool:
    """The ranks' logs are to be read afterwards, each generation's in a folder of its own."""
    return path.is_dir() or (path.suffix == ".log" and path.parent.name.startswith("ranks-"))


def _processes_with(mark: str) -> list[int]:
    """The processes whose environment has a mark, which children inherit."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in entry.joinpath("environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            # It has ended, or is nobody of ours.
            continue
    return found


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def _ratio(first: list[tuple[float, ...]], others: list[tuple[float, ...]]) -> Interval:
    """How many times as long the steps of other trials take as those of the first ones."""
    count = min(len(one) for one in (*first, *others))
    return round_ratio([one[:count] for one in others], [one[:count] for one in first])


def _is_alike(ratio: Interval) -> bool:
    """Whether the interval leaves room for no difference, or for one that two trials of a strategy may have."""
    return ratio.low <= 1 + LEAST_DIFFERENCE and ratio.high >= 1 - LEAST_DIFFERENCE


def _interval(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def _told(name: str, trials: list[dict[str, Any]]) -> dict[str, Any]:
    """How the trials with one fault ended, and how soon after it, from first to last."""
    mine = [trial for trial in trials if trial["fault"] == name]
    seconds = sorted(trial["seconds_to_tell"] for trial in mine if trial["seconds_to_tell"] is not None)
    return {
        "count": len(mine),
        "kinds": dict(Counter(trial["kind"] for trial in mine)),
        "seconds_to_tell": {"median": float(np.median(seconds)), "most": seconds[-1]} if seconds else None,
    }


def _in_words(trial: dict[str, Any]) -> str:
    after = "" if trial["seconds_to_tell"] is None else f" after {trial['seconds_to_tell']} s"
    wrong = f" WRONG: {'; '.join(trial['wrong'])}" if trial["wrong"] else ""
    return f"{trial['fault']} on rank {trial['rank']}: {trial['kind']}{after}{wrong}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AutosyncError as error:
        sys.exit(f"error: {error}")
