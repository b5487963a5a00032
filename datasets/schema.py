"""The record: one trial as data, with everything that is needed to learn from it elsewhere.

A record has what was run (model, cluster, strategy), the outcome (either a measurement or a failure) and the
circumstances (the environment, and whether compute and network were real). It refers to no file: it contains the whole
strategy, and names model and cluster by the fingerprints of their specs, which lie beside the study's journal.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

from autosync import documents, jsonio
from autosync.datasets.measured_input import MeasuredInput
from autosync.documents import STRICT, Document
from autosync.errors import DocumentError, Problem
from autosync.strategy.representation import StrategyClass

SCHEMA_KIND = "record"
SCHEMA_VERSION = 1

RECORD_ATTRIBUTE = "record"
"""The attribute of an Optuna trial that holds its record."""
WITHDRAWN_ATTRIBUTE = "withdrawn"
"""The attribute of a finished trial without a record, with the reason: it was interrupted, or another tuner had the
same."""

FailureKind = Literal["refused", "raised", "timeout", "lost_rank", "launch", "infrastructure"]
FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
INFRASTRUCTURE_KINDS: frozenset[FailureKind] = frozenset({"launch", "infrastructure"})
"""The kinds of failure that are not the strategy's fault and do not count against it."""

Flag = Literal["busy_cpu", "not_steady", "drift", "noisy", "stopped_early", "busy_machine", "drifting_machine"]
FLAGS: tuple[Flag, ...] = get_args(Flag)

_MAX_COUNT = 2**63 - 1


def seconds_of_steps(step_seconds: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the time of each step, as the mean over its ranks. The argument is by rank and step.

    Steps may not end for all ranks at once, for example if communication continues in the next forward pass. Each rank
    then has its long steps at different times. The slowest ranks of all steps would add up to more time than has
    passed; means do not.
    """
    return tuple([statistics.fmean(ranks) for ranks in zip(*step_seconds, strict=True)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The step times of a trial.

    `step_seconds` has a row for each rank with the time of each measured step; warm-up steps are not included.
    `median_seconds` is the median of `seconds_of_steps`, or the mean if the steps wait for a loader, and `low_seconds`
    and `high_seconds` are the ends of its 95 % interval. `peak_memory_bytes` has a value for each rank.

    Older records lack these: `cpu_share` is the used share of the machine's processor time. `bytes_sent` and
    `bytes_received` are the mean bytes of a step, for each rank. `exposed_seconds` is the part of `median_seconds` that
    the model's compute alone does not explain. `other_cpu_share` is the share of processor time that other programs
    used. `input` says how ranks waited for their batches.

    `flags` say why the figures are doubtful: the processors were busy (`busy_cpu`), the steps were `not_steady` after
    the longest warm-up, they `drift`, the interval is `noisy` (wider than wanted), the trial was `stopped_early`
    because it was clearly worse than another, other programs used too much of the processors (`busy_machine`), or a
    repeated reference strategy took an unusual time near it (`drifting_machine`).
    """

    __pydantic_config__ = STRICT

    step_seconds: tuple[tuple[float, ...], ...]
    median_seconds: float
    low_seconds: float
    high_seconds: float
    num_warmup_steps: int
    peak_memory_bytes: tuple[int, ...]
    cpu_share: float | None = None
    bytes_sent: tuple[int, ...] | None = None
    bytes_received: tuple[int, ...] | None = None
    exposed_seconds: float | None = None
    other_cpu_share: float | None = None
    input: MeasuredInput | None = None
    flags: tuple[Flag, ...] = ()

    def __post_init__(self) -> None:
        if not self.step_seconds or not self.step_seconds[0]:
            raise ValueError("no step was measured (at least one step on at least one rank)")
        if len({len(steps) for steps in self.step_seconds}) > 1:
            counts = ", ".join(str(len(steps)) for steps in self.step_seconds)
            raise ValueError(f"the ranks have {counts} measured steps (every rank takes every step)")
        limits = (self.low_seconds, self.median_seconds, self.high_seconds)
        for seconds in (*limits, *(seconds for steps in self.step_seconds for seconds in steps)):
            if not (math.isfinite(seconds) and seconds > 0):
                raise ValueError(f"{seconds} is no step time (finite and above 0 seconds)")
        if list(limits) != sorted(limits):
            low, median, high = limits
            raise ValueError(f"the median {median} is not within {low} to {high} (low <= median <= high)")
        if not _is_count(self.num_warmup_steps):
            raise ValueError(f"{self.num_warmup_steps} warm-up steps cannot be (0 or more)")
        if len(self.peak_memory_bytes) != self.num_ranks or not all(map(_is_count, self.peak_memory_bytes)):
            raise ValueError(
                f"peak memory {list(self.peak_memory_bytes)} of {self.num_ranks} ranks "
                "(a number of bytes, 0 or more, for each rank)"
            )
        self._check_circumstances()

    def _check_circumstances(self) -> None:
        for name in ("bytes_sent", "bytes_received"):
            counts = getattr(self, name)
            if counts is not None and (len(counts) != self.num_ranks or not all(map(_is_count, counts))):
                raise ValueError(
                    f"{name} {list(counts)} of {self.num_ranks} ranks (a number of bytes, 0 or more, for each rank)"
                )
        for share in (self.cpu_share, self.other_cpu_share):
            if share is not None and not 0 <= share <= 1:
                raise ValueError(f"a CPU share of {share} cannot be (0 to 1)")
        if self.exposed_seconds is not None and not (math.isfinite(self.exposed_seconds) and self.exposed_seconds >= 0):
            raise ValueError(f"{self.exposed_seconds} exposed seconds cannot be (finite, 0 or more)")
        if self.input is not None and len(self.input.wait_seconds) != self.num_ranks:
            raise ValueError(f"the input of {len(self.input.wait_seconds)} ranks, not of {self.num_ranks}")
        if len(set(self.flags)) != len(self.flags):
            raise ValueError(f"the flags {list(self.flags)} (each once)")

    @property
    def num_ranks(self) -> int:
        return len(self.step_seconds)

    @property
    def num_steps(self) -> int:
        return len(self.step_seconds[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """The facts of a strategy's plan, for an average step.

    `num_sends` is the number of sends from one rank to another, over all ranks and transfers. `num_native_sends` is the
    part of them in the backend's own collectives, under our assumptions about these. `sent_bytes` is the sum of bytes
    that leave nodes. `wire_seconds` is the time that the busiest link of a node or a rack needs for its bytes; no step
    can be faster.
    """

    __pydantic_config__ = STRICT

    num_messages: int
    num_transfers: int
    num_locals: int
    num_lanes: int
    num_sends: float
    num_native_sends: float
    sent_bytes: float
    wire_seconds: float

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            number = getattr(self, name)
            if not 0 <= number <= _MAX_COUNT:
                raise ValueError(f"{name} is {number} (finite, 0 or more)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The reason why a trial has no measurement.

    `refused`: the strategy cannot run on this model, cluster or backend. `raised`: a rank ended with an error.
    `timeout`: the trial did not end in time. `lost_rank`: a rank disappeared without a message. `launch`: the ranks
    could not be started. `infrastructure`: the machines failed during the trial, for example by a full disk, or by a
    rank that disappeared once but not when the strategy was tried again.
    """

    __pydantic_config__ = STRICT

    kind: FailureKind
    message: str

    def __post_init__(self) -> None:
        # The last message of a rank may hold bytes that are not text. The trial must not be lost for that.
        object.__setattr__(self, "message", self.message.encode("utf-8", "backslashreplace").decode())

    @property
    def is_infrastructure(self) -> bool:
        """Whether the failure is not the strategy's fault."""
        return self.kind in INFRASTRUCTURE_KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One trial of one study.

    `origin` says where the strategy came from, such as `preset:ddp`, `baseline:torch_ddp` or `sampled`. A stock
    baseline runs without a strategy of ours: `strategy`, `strategy_id` and `plan_id` are None. `plan_id` is also None
    if a strategy was refused before it was lowered. `strategy` holds the fields of a strategy file, and `plan` the
    facts of its plan. `model_spec` and `cluster_spec` are the hashes of the whole specs, including times, under which
    stores keep them; fingerprints cover only what plans depend on. `compute` is `replayed` if ranks slept for the model
    spec's times, multiplied by `dilation`; `network` is `emulated` on a testbed. `started` is in UTC.
    """

    __pydantic_config__ = STRICT

    study: str
    trial: int
    origin: str
    model_name: str
    model_fingerprint: str
    cluster_name: str
    cluster_fingerprint: str
    strategy: Mapping[str, Any] | None = None
    strategy_id: str | None = None
    plan_id: str | None = None
    classes: tuple[StrategyClass, ...]
    measurement: Measurement | None = None
    failure: Failure | None = None
    plan: PlanFacts | None = None
    model_spec: str | None = None
    cluster_spec: str | None = None
    environment: Mapping[str, str]
    compute: Literal["real", "replayed"]
    network: Literal["real", "emulated"]
    dilation: float = 1.0
    started: str

    def __post_init__(self) -> None:
        if (self.measurement is None) == (self.failure is None):
            found = "neither" if self.measurement is None else "both"
            raise ValueError(f"{found} of measurement and failure (a trial has exactly one)")
        if not _is_count(self.trial):
            raise ValueError(f"{self.trial} is no number of a trial (0 or more)")
        if not self.classes or len(set(self.classes)) != len(self.classes):
            raise ValueError(f"the classes {list(self.classes)} (one or more, each once)")
        if not (math.isfinite(self.dilation) and self.dilation > 0):
            raise ValueError(f"a dilation of {self.dilation} cannot be (above 0)")
        self._check_texts()
        self._check_strategy()
        if not _is_utc_time(self.started):
            raise ValueError(f"started is {self.started!r} (an ISO timestamp in UTC such as 2026-01-31T12:00:00+00:00)")

    def _check_texts(self) -> None:
        names = ("study", "origin", "model_name", "model_fingerprint", "cluster_name", "cluster_fingerprint")
        for name in (*names, "strategy_id", "plan_id", "model_spec", "cluster_spec"):
            if getattr(self, name) == "":
                raise ValueError(f"{name} is empty (text)")
        texts = (*(getattr(self, name) for name in names), *self.environment, *self.environment.values())
        if not _is_unicode(texts):
            raise ValueError("a name or the environment cannot be written (Unicode text)")

    def _check_strategy(self) -> None:
        if (self.strategy is None) != (self.strategy_id is None):
            raise ValueError("strategy and strategy_id go together (both, or neither for a stock baseline)")
        if (self.plan_id is not None or self.plan is not None) and self.strategy is None:
            raise ValueError("a plan or plan_id without a strategy (plans are made of strategies)")
        if self.strategy is not None and not _is_plain(self.strategy):
            raise ValueError("the strategy holds something else than plain values (as a strategy file does)")


def record_to_plain(record: Record) -> dict[str, Any]:
    """Return the fields of a record, header first."""
    return documents.dump(record, kind=SCHEMA_KIND, version=SCHEMA_VERSION)


def record_from_plain(plain: Any, *, file: str = "", line: int = 0) -> Record:
    """Return the record in plain values. Raise a DocumentError with every mistake in them and its place in the file."""
    document = Document(file=file, value=plain, lines={(): line})
    return documents.parse(document, kind=SCHEMA_KIND, version=SCHEMA_VERSION, into=Record)


def signed(record: Record) -> dict[str, Any]:
    """Return the fields of a record with their checksum, as files hold them."""
    fields = record_to_plain(record)
    return {**fields, "checksum": _checksum(fields)}


def record_from_signed(plain: Any, *, file: str = "", line: int = 0) -> Record:
    """Return the record in the fields that `signed` returns. Fields without a checksum are accepted as they are."""
    if not isinstance(plain, dict) or plain.get("checksum") is None:
        return record_from_plain(plain, file=file, line=line)
    fields = dict(plain)
    checksum = fields.pop("checksum")
    record = record_from_plain(fields, file=file, line=line)
    found = _checksum(record_to_plain(record))
    if checksum != found:
        what = f"the record is damaged or was changed: its checksum is {found}"
        hint = "leave out the checksum of a record that you change"
        problem = Problem(what=what, rule="a record is as it was written", hint=hint, path=("checksum",))
        raise DocumentError([replace(problem, file=file, line=line)])
    return record


def _checksum(fields: Mapping[str, Any]) -> str:
    """Return the hash of a record's fields. 2 and 2.0 seconds have the same hash, because files return the latter."""
    parts = {name: _with_floats(fields[name], kind) for name, kind in _PARTS.items() if name in fields}
    return jsonio.content_hash({**_with_floats(fields, Record), **parts})


_PARTS: Mapping[str, type] = {"measurement": Measurement, "plan": PlanFacts}


def _with_floats(fields: Mapping[str, Any], kind: type) -> dict[str, Any]:
    names = [name for name, written in kind.__annotations__.items() if "float" in written and name in fields]
    return {**fields, **{name: _as_floats(fields[name]) for name in names}}


def _as_floats(value: Any) -> Any:
    return [_as_floats(one) for one in value] if isinstance(value, list) else float(value)


def _is_count(number: int) -> bool:
    return 0 <= number <= _MAX_COUNT


def _is_plain(value: Any) -> bool:
    """Return whether a value survives JSON unchanged."""
    try:
        text = jsonio.canonical_json(value)
        return bool(_is_unicode([text]) and json.loads(text) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def _is_unicode(texts: Iterable[str]) -> bool:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_utc_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).utcoffset() == timedelta(0)
    except ValueError:
        return False
