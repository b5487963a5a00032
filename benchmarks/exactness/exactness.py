"""Trains random exact strategies and all presets on real ranks, and compares them with single-process training.

    python benchmarks/exactness/exactness.py --count 2000 --seed 1 > out.json

Ranks are processes on this machine (gloo over loopback). They are started once for each shape of cluster and run case
after case. There are four models with several optimizers each, in float64 and float32; `reference.py` has the
comparison and its tolerances. Prints one JSON document: the number of cases, how many failed, were refused (with the
reasons) or hung, the seconds, and each failure with its strategy. A failure runs again with `--only FILE`, where FILE
is the document or a part of it, or with `--seed` and `--index`. Ends with 1 if a case failed, or if none was trained.

With `--device cuda` training is on GPUs, which ranks share if there are too few. With `--backend nccl` the plans are
NCCL's, which needs one GPU for each rank (`--cluster "one rank"` if there is only one). `--rehearse` does on the CPU
what the engine does there.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosync import documents
from autosync.runtime.session.support import unsupported
from autosync.specs.cluster import BackendName, ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.specs.profile.run import profile
from autosync.strategy.files import parse_strategy

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.exactness.cases import CLUSTERS, SEVERAL, Case, Cases, cluster_of, read_case
from benchmarks.exactness.ranks import Answer, Join
from benchmarks.exactness.tasks import DTYPES, TASKS, task_of
from benchmarks.shared import Process, end_ranks, parser_of, report, run, start_ranks, tell
from tests.helpers.gpu_rehearsals import REHEARSALS, Rehearsal

HERE = Path(__file__).parent
MAX_PRINTED = 50
LIMIT_SECONDS = 90.0
"""How long ranks may take for a case."""
GRACE_SECONDS = 10.0
"""How long the other ranks may take after one has failed, because they may wait for it in vain."""


class NoAnswerError(Exception):
    """A rank gave no answer in time."""


class Ranks:
    """The ranks of one shape of cluster, started when needed and restarted after a failure."""

    def __init__(
        self,
        cluster: ClusterSpec,
        *,
        num_steps: int,
        has_delays: bool = False,
        device: str = "cpu",
        rehearsal: Rehearsal | None = None,
    ) -> None:
        self._num_workers = cluster.num_workers
        self._servers = [node.name for node in cluster.nodes if not node.devices]
        self._device = device
        self._rehearsal = rehearsal
        self._num_steps = num_steps
        self._has_delays = has_delays
        self._process: Process | None = None
        self._connections: list[Connection] = []
        self._store: Any = None

    def begin(self, case: Case) -> None:
        """Give a case to the ranks."""
        if self._process is None:
            self._start()
        for one in self._connections:
            one.send(case)

    def end(self) -> list[Answer]:
        """Return the ranks' answers. Ranks in a doubtful state are ended."""
        answers: dict[int, Answer] = {}
        deadline = time.monotonic() + LIMIT_SECONDS
        while len(answers) < len(self._connections):
            missing = [one for rank, one in enumerate(self._connections) if rank not in answers]
            ready = connection.wait(missing, max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for one in ready:
                rank = self._connections.index(one)  # type: ignore[arg-type]
                answers[rank] = _receive(self._connections[rank])
                if answers[rank].has_failed:
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        found = [answers[rank] for rank in sorted(answers)]
        if len(answers) < len(self._connections) or any(one.outcome == "raised" for one in found):
            self.stop()
        if len(answers) < len(self._connections) and not any(one.outcome == "raised" for one in found):
            raise NoAnswerError(f"no answer of {len(self._connections) - len(answers)} ranks in {LIMIT_SECONDS:g} s")
        return found

    def _start(self) -> None:
        num_workers, servers = self._num_workers, self._servers
        pairs = [socket.socketpair() for _ in range(num_workers + len(servers))]
        theirs = [theirs.fileno() for _, theirs in pairs]
        repeatable = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        self._process = start_ranks(HERE / "ranks.py", *theirs, environment=repeatable, pass_fds=theirs)
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._connections = []
        for rank, (ours, other) in enumerate(pairs):
            other.close()
            self._connections.append(Connection(ours.detach()))
            self._connections[rank].send(
                Join(
                    port=self._store.port,
                    rank=rank,
                    serves=servers[rank - num_workers] if rank >= num_workers else "",
                    num_workers=num_workers,
                    num_steps=self._num_steps,
                    has_delays=self._has_delays,
                    device=self._device,
                    rehearsal=self._rehearsal,
                )
            )

    def stop(self) -> None:
        """End the ranks, which are a process group of their own."""
        for one in self._connections:
            one.close()
        self._connections = []
        if self._process is not None:
            end_ranks(self._process)
            self._process = None
        self._store = None


def _receive(one: Connection) -> Answer:
    try:
        answer: Answer = one.recv()
    except (EOFError, ConnectionResetError):
        return Answer(outcome="raised", problems=["the rank died"])
    return answer


class Tally:
    """The outcomes of all cases."""

    def __init__(self) -> None:
        self.count = 0
        self.trained = 0
        self.hung = 0
        self.refused: Counter[str] = Counter()
        self.failures: list[dict[str, Any]] = []
        self.origins: Counter[str] = Counter()
        self.clusters: Counter[str] = Counter()
        self.tasks: Counter[str] = Counter()
        self.num_gradients = 0
        self.num_states = 0
        self.worst: dict[str, float] = dict.fromkeys(DTYPES, 0.0)
        self.seconds: dict[str, list[float]] = {}

    @property
    def holds(self) -> bool:
        """Whether cases were trained, and none failed."""
        return self.trained > 0 and not self.failures

    def refuse(self, reason: str) -> None:
        self.count += 1
        self.refused[_kind_of(reason)] += 1

    def hang(self, case: Case, why: str) -> None:
        self.count += 1
        self.hung += 1
        self._fail(case, [why])

    def answer(self, case: Case, answers: list[Answer]) -> None:
        self.count += 1
        num_workers = case.bundle.cluster.num_workers
        if len(answers) >= num_workers and all(one.outcome == "refused" for one in answers[:num_workers]):
            self.refused[_kind_of(answers[0].problems[0])] += 1
            return
        if problems := problems_of(answers, case.bundle.cluster):
            self._fail(case, problems)
            return
        self.trained += 1
        self.origins[case.origin] += 1
        self.clusters[case.cluster] += 1
        self.tasks[case.task] += 1
        self.num_gradients += answers[0].num_gradients
        self.num_states += answers[0].has_state
        self.worst[case.dtype] = max(self.worst[case.dtype], *(one.worst for one in answers))
        for phase, seconds in answers[0].seconds.items():
            self.seconds.setdefault(phase, []).append(seconds)

    def _fail(self, case: Case, problems: list[str]) -> None:
        self.failures.append({"problems": problems[:8], **case.describe()})
        tell(f"FAILED {case.index} ({case.task}, {case.dtype}, {case.cluster}, {case.origin}):")
        for problem in problems[:8]:
            tell(f"  {problem}")

    def summary(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "trained": self.trained,
            "failed": len(self.failures),
            "hung": self.hung,
            "refused": self.refused.total(),
            "reasons": dict(self.refused.most_common()),
            "by_origin": dict(sorted(self.origins.items())),
            "by_cluster": dict(sorted(self.clusters.items())),
            "by_task": dict(sorted(self.tasks.items())),
            "gradients_compared": self.num_gradients,
            "optimizer_states_compared": self.num_states,
            "largest_error_per_tolerance": {dtype: round(worst, 4) for dtype, worst in self.worst.items()},
            "median_seconds": {phase: round(statistics.median(all_), 4) for phase, all_ in self.seconds.items()},
            "failures": self.failures[:MAX_PRINTED],
        }


def _kind_of(reason: str) -> str:
    """Return a reason without the names in it."""
    without = re.sub(r"the message of \S+( and \d+ more)?", "a message", reason)
    return re.sub(r"\S+\.(weight|bias)(\[\d+\])?", "a variable", without)[:200]


def problems_of(answers: Sequence[Answer], cluster: ClusterSpec) -> list[str]:
    """Return all problems in the answers of a cluster's ranks."""
    problems = [f"rank {rank}: {text}" for rank, one in enumerate(answers) for text in one.problems]
    if len(answers) < len(cluster.ranks):
        return [*problems, f"{len(cluster.ranks) - len(answers)} ranks gave no answer"]
    return problems or _differences([one.digests for one in answers[: cluster.num_workers]])


def _differences(digests: list[dict[str, str]]) -> list[str]:
    """Return the tensors that are not the same on all ranks, bit for bit."""
    first, *others = digests
    return [
        f"{name} of rank {rank} is not rank 0's, bit for bit"
        for rank, other in enumerate(others, start=1)
        for name in first
        if other[name] != first[name]
    ]


def specs() -> dict[tuple[str, str], ModelSpec]:
    """Return the model specs of all tasks in all precisions."""
    return {(name, dtype): profile(task_of(name, dtype)) for name in TASKS for dtype in DTYPES}


def run_all(cases: Iterable[Case], ranks: Mapping[str, Ranks], *, deadline: float) -> Tally:
    """Try the cases in succession; the next one is drawn while ranks work."""
    tally = Tally()
    drawn = iter(cases)
    case = next(drawn, None)
    while case is not None and time.monotonic() < deadline:
        reasons = unsupported(case.plan())
        if reasons:
            tally.refuse(reasons[0])
            case = next(drawn, None)
            continue
        ranks[case.cluster].begin(case)
        following = next(drawn, None)
        try:
            tally.answer(case, ranks[case.cluster].end())
        except NoAnswerError as error:
            tally.hang(case, str(error))
        if tally.count % 50 == 0:
            tell(f"{tally.count} cases, {len(tally.failures)} failed")
        case = following
    return tally


def failures_in(path: Path, models: Mapping[tuple[str, str], ModelSpec], backend: BackendName) -> Iterator[Case]:
    """Yield the cases of a printed document, or of a single failure from it."""
    document = json.loads(path.read_text())
    for fields in document.get("failures", [document]):
        text = documents.format_json(fields["strategy"])
        strategy = parse_strategy(documents.parse_document(text, file=str(path)))
        yield read_case(fields, strategy, models[fields["task"], fields["dtype"]], backend)


def arguments_of(command_line: list[str] | None = None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many cases (default 100)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--index", type=int, help="only the case of this index")
    parser.add_argument("--only", type=Path, help="only the failures of an earlier run, in its document")
    parser.add_argument("--limit-seconds", type=float, default=3600.0, help="begin no case after that")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--shares", action="store_true", help="ranks compute random shares of the batch")
    parser.add_argument("--trees", action="store_true", help="samples whose messages go over random trees")
    parser.add_argument("--delays", action="store_true", help="ranks sleep at random in forward, backward, before step")
    parser.add_argument("--cluster", action="append", choices=list(CLUSTERS), help="this shape (may be repeated)")
    parser.add_argument("--task", action="append", choices=list(TASKS), help="this task (may be repeated)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to train")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="the clusters' backend")
    parser.add_argument("--rehearse", choices=REHEARSALS, help="do on the CPU what the engine does on a GPU")
    return parser.parse_args(command_line)


def main() -> int:
    """Run from the command line."""
    arguments = arguments_of()
    began = time.monotonic()
    torch.set_num_threads(1)
    models = specs()
    backend: BackendName = "nccl" if arguments.rehearse == "nccl" else arguments.backend
    # NCCL has no ranks without a device.
    clusters = tuple(arguments.cluster or [one for one in SEVERAL if backend == "gloo" or 0 not in CLUSTERS[one]])
    chosen = {key: model for key, model in models.items() if key[0] in (arguments.task or TASKS)}
    cases = Cases(
        chosen,
        seed=arguments.seed,
        clusters=clusters,
        num_steps=arguments.steps,
        backend=backend,
        shares=arguments.shares,
        trees=arguments.trees,
    )
    indices: Iterable[int] = range(arguments.count) if arguments.index is None else (arguments.index,)
    drawn = failures_in(arguments.only, models, backend) if arguments.only else map(cases.draw, indices)
    ranks = {
        name: Ranks(
            cluster_of(name),
            num_steps=arguments.steps,
            has_delays=arguments.delays,
            device=arguments.device,
            rehearsal=arguments.rehearse,
        )
        for name in CLUSTERS
    }
    try:
        tally = run_all(drawn, ranks, deadline=began + arguments.limit_seconds)
    finally:
        for one in ranks.values():
            one.stop()
    summary = tally.summary()
    document = {**summary, "seed": arguments.seed, "seconds": round(time.monotonic() - began, 1)}
    return report(document, holds=tally.holds)


if __name__ == "__main__":
    run(main)
