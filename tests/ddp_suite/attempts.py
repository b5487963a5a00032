"""Runs a behaviour on forked ranks, and ends them when they are over their time.

Ranks of one attempt run stock DDP and then one strategy after the other, and say of each what came of it. As soon as a
rank says something else than `same`, what these processes hold is not trusted any more: they are ended, and the
strategies that are left get new ones. So neither a hang nor a crash takes anything but itself down.
"""

import contextlib
import datetime as dt
import json
import multiprocessing.connection as connections
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from environment import BEHAVIOURS, WAYS, Behaviour, Env
from judging import outcome, said, verdict

LIMIT_SECONDS = 20.0
REFERENCE = "stock DDP"


class Attempt:
    """A behaviour on its ranks, for some strategies in turn.

    `ends` is how stock DDP ends if that is known to be an error: it is not run again then.
    """

    def __init__(
        self, name: str, ranks: int, strategies: Sequence[str], *, ends: str = "", limit_seconds: float
    ) -> None:
        self.name = name
        self.ranks = ranks
        self.ends = ends
        self.waiting = [*([] if ends else [REFERENCE]), *strategies]
        self.limit_seconds = limit_seconds
        self.is_over = False
        self.results: dict[str, dict[str, Any]] = {}
        self.left: list[str] = []
        # No TemporaryDirectory: processes that ranks fork would take it away when they exit.
        self._folder = Path(tempfile.mkdtemp(prefix="ddp-suite-"))
        self._said: list[list[dict[str, Any]]] = [[] for _ in range(ranks)]
        self._ended: dict[int, int] = {}
        self._pids: list[int] = []
        self.pipes: list[Any] = []
        for rank in range(ranks):
            reader, writer = Pipe(duplex=False)
            pid = os.fork()
            if not pid:
                self._be(rank, strategies, writer)
            writer.close()
            self._pids.append(pid)
            self.pipes.append(reader)
        self._since = time.monotonic()

    def _be(self, rank: int, strategies: Sequence[str], writer: Any) -> None:
        """The rank's process; it does not return."""
        # A group of its own, for it may start processes; and if all else fails it ends by itself.
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.alarm(int(60 + (len(strategies) + 1) * self.limit_seconds))
        log = os.open(self._folder / f"log-{rank}", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = 1
        try:
            run_rank(
                BEHAVIOURS[self.name],
                strategies,
                ends=self.ends,
                folder=self._folder,
                rank=rank,
                ranks=self.ranks,
                writer=writer,
            )
            code = 0
        except BaseException as error:  # noqa: BLE001 - it is a forked process, which must end here whatever happens
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        finally:
            sys.stderr.flush()
            os._exit(code)

    def advance(self) -> None:
        """Take in what ranks have said; when a strategy is decided, go on or end."""
        for rank, pipe in enumerate(self.pipes):
            if rank in self._ended:
                continue
            try:
                while pipe.poll():
                    self._said[rank].append(json.loads(pipe.recv_bytes()))
            except (EOFError, OSError):
                self._ended[rank] = os.waitpid(self._pids[rank], 0)[1]
        while self.waiting and not self.is_over and self._decide(self.waiting[0]):
            pass
        if not self.waiting:
            self._end([])

    def _decide(self, strategy: str) -> bool:
        """Whether it is known what came of a strategy."""
        said = [next((one for one in words if one["strategy"] == strategy), None) for words in self._said]
        num_silent = said.count(None)
        silent = [rank for rank, one in enumerate(said) if one is None]
        died = [rank for rank in silent if rank in self._ended]
        seconds = time.monotonic() - self._since
        if silent and seconds < self.limit_seconds and len(died) < num_silent:
            return False
        if died:
            # Others may end on their own soon, and what they say is worth having; the rank that died is the result.
            verdicts = "crash"
        elif silent:
            verdicts = "hang"
        else:
            verdicts = worst([one["verdict"] for one in said if one is not None])
        known = [one for one in said if one is not None]
        words = "; ".join(
            f"rank {rank}: {one['verdict']} {one['words']}" if one else f"rank {rank}: {self._of_silent(rank)}"
            for rank, one in enumerate(said)
            if one is None or one["words"]
        )
        self.results[strategy] = {
            "verdict": verdicts,
            # A rank that says why it ended leaves nothing to find out by trying again.
            "is_sure": not silent and any(one["verdict"] != "waited" for one in known),
            "words": words if len({one["words"] for one in known}) > 1 or silent else known[0]["words"],
            "moment": max((one["moment"] for one in known), default=""),
            "seconds": round(max((one["seconds"] for one in known), default=seconds), 2),
        }
        self.waiting.pop(0)
        self._since = time.monotonic()
        if strategy == REFERENCE and verdicts != "same":
            self.ends = self.results[strategy]["words"] or verdicts
            self._end(self.waiting)
        elif verdicts not in ("same", "more") or self.ends:
            self._end(self.waiting)
        return True

    def _of_silent(self, rank: int) -> str:
        if rank not in self._ended:
            return "still at it"
        log = (self._folder / f"log-{rank}").read_text(errors="replace").strip().splitlines()
        status = self._ended[rank]
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.waitstatus_to_exitcode(status)}"
        return f"{how}: {log[-1][:200] if log else 'not a word'}"

    def _end(self, left: Sequence[str]) -> None:
        """End the ranks and what they have started, by their process ids."""
        self.left = list(left)
        for rank, pid in enumerate(self._pids):
            if rank not in self._ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                self._ended[rank] = os.waitpid(pid, 0)[1]
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            self.pipes[rank].close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self.is_over = True

    def open_pipes(self) -> list[Any]:
        return [pipe for rank, pipe in enumerate(self.pipes) if rank not in self._ended]

    def stop(self) -> None:
        if not self.is_over:
            self._end([])


def worst(verdicts: Sequence[str]) -> str:
    """What a strategy makes of a behaviour, of what it is on each rank.

    A refusal is one on all ranks; where the others wait for a rank until they give up, that is a hang.
    """
    kinds = set(verdicts)
    if "wrong" in kinds:
        return "wrong"
    if "waited" in kinds:
        return "hang"
    if "raised" in kinds:
        return "raised"
    if kinds == {"refused"}:
        return "refused"
    if "refused" in kinds:
        return "wrong"
    return "same" if kinds == {"same"} else "more"


def run_rank(
    one: Behaviour, strategies: Sequence[str], *, ends: str, folder: Path, rank: int, ranks: int, writer: Any
) -> None:
    """Stock DDP, then one strategy after the other; what is said of each goes to the process that has forked us."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=dt.timedelta(seconds=15))
    bundles: dict[Any, Any] = {}

    def tell(strategy: str, judged: tuple[str, str], env: Env, since: float) -> None:
        kind, words = judged
        moment = env.moment if env.moment == "start" else f"batch {env.num_batches}"
        seconds = time.monotonic() - since
        said = {"strategy": strategy, "verdict": kind, "words": words, "moment": moment, "seconds": seconds}
        writer.send_bytes(json.dumps(said).encode())

    expected: Any = None
    if not ends:
        since = time.monotonic()
        env = Env(None, bundles=bundles)
        expected, error = outcome(lambda: one.function(env))
        tell(REFERENCE, ("same", "") if error is None else ("raised", said(error)), env, since)
        if error is not None:
            time.sleep(3600)
    for strategy in strategies:
        dist.barrier()
        since = time.monotonic()
        env = Env(WAYS[strategy], bundles=bundles)
        found = outcome(lambda: one.function(env))  # noqa: B023 - called at once
        judged = verdict(found, expected, ends=ends, tolerance=one.tolerance)
        if judged[0] in ("same", "more"):
            _, error = outcome(env.stop)
            left = [thread.name for thread in threading.enumerate() if thread.name.startswith("autosync-")]
            if error is not None and not ends:
                judged = ("wrong", f"at release: {type(error).__name__}: {error}"[:300])
            elif left and env.checks_threads:
                judged = ("wrong", f"after release there still is {left[0]}")
        tell(strategy, judged, env, since)
        if judged[0] not in ("same", "more") or ends:
            # The other ranks say theirs; then all are ended.
            time.sleep(3600)


def wait(attempts: Sequence[Attempt]) -> None:
    """Until a rank says something, or a moment has passed."""
    pipes = [
        pipe for one in attempts for rank, pipe in enumerate(one.pipes) if not pipe.closed and rank not in one._ended
    ]
    connections.wait(pipes, timeout=0.2)
