"""What a trial asks of its ranks, and what each rank answers: JSON files in the trial's folder.

A job has contestants. One makes a trial; several are measured in turn, block by block, so that whatever drifts hits
all alike.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autosync import documents, jsonio
from autosync.documents import STRICT

JOB_KIND = "job"
ANSWER_KIND = "answer"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One way to train: a bundle's strategy under our engine, or torch's own DistributedDataParallel as it ships.

    `find_unused_parameters` is DDP's option of that name: without it, DDP refuses models that leave parameters out.
    """

    __pydantic_config__ = STRICT

    name: str
    bundle: str | None = None
    find_unused_parameters: bool = False

    @property
    def is_stock_ddp(self) -> bool:
        return self.bundle is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A task, who contests, and how long: warm-up steps of each, then blocks of steps in turn."""

    __pydantic_config__ = STRICT

    task: str
    contestants: tuple[Contestant, ...]
    num_warmup_steps: int = 4
    num_blocks: int = 1
    num_steps: int = 12
    seed: int = 0
    timeout_seconds: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What one rank measured of one contestant: seconds of each measured step, block after block."""

    __pydantic_config__ = STRICT

    name: str
    step_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One rank's answer: its timings, or what went wrong. Who failed first tells why the others did."""

    __pydantic_config__ = STRICT

    rank: int
    timings: tuple[Timing, ...] = ()
    peak_memory_bytes: int = 0
    error_kind: Literal["refused", "raised"] | None = None
    error: str = ""
    ended_at_seconds: float = 0.0


class JobFolder:
    """Where a job's files are."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def job(self) -> Path:
        return self.path / "job.json"

    @property
    def rendezvous(self) -> Path:
        """The file over which the ranks find one another: new for each launch, for an old one is no meeting point."""
        return self.path / "rendezvous"

    def answer(self, rank: int) -> Path:
        return self.path / f"answer-{rank}.json"

    def write_job(self, job: Job) -> None:
        jsonio.write_json(self.job, documents.dump(job, kind=JOB_KIND, version=VERSION))

    def read_job(self) -> Job:
        return documents.load(self.job, kind=JOB_KIND, version=VERSION, into=Job)[0]

    def write_answer(self, answer: Answer) -> None:
        jsonio.write_json(self.answer(answer.rank), documents.dump(answer, kind=ANSWER_KIND, version=VERSION))

    def read_answer(self, rank: int) -> Answer | None:
        """The rank's answer, if it gave one."""
        if not self.answer(rank).exists():
            return None
        return documents.load(self.answer(rank), kind=ANSWER_KIND, version=VERSION, into=Answer)[0]


def new_folder(parent: Path, name: str) -> JobFolder:
    """A folder that no other job has."""
    path = parent / name
    while path.exists():
        path = parent / f"{name}-{time.time_ns()}"
    path.mkdir(parents=True)
    return JobFolder(path)
