"""The part of a summary that users see, read from the fields of `summary.json`.

`autosync tune` shows its own summary in this form, and `autosync show` that of a study's folder. So both print the
same. Fields that only programs read are left out, and fields that older versions did not write may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autosync import documents
from autosync.errors import InputError
from autosync.near_files import near_path_hint
from autosync.search.study_folder import StudyFolder

SCHEMA_KIND = "summary"
SCHEMA_VERSION = 1

_LENIENT: Any = {"extra": "ignore", "strict": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownInterval:
    """A figure with its 95 % interval."""

    __pydantic_config__ = _LENIENT

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.value > 0:
            raise ValueError(f"a time of {self.value:g} seconds (more than 0)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRatio:
    """The speed of one contestant as a multiple of another's."""

    __pydantic_config__ = _LENIENT

    value: float
    low: float
    high: float
    in_words: str

    def __post_init__(self) -> None:
        if not all(one > 0 for one in (self.value, self.low, self.high)):
            raise ValueError(f"a ratio of {self.value:g}, from {self.low:g} to {self.high:g} (more than 0)")


@dataclass(frozen=True, slots=True, kw_only=True)
class InWords:
    """A finding that is shown only as a text."""

    __pydantic_config__ = _LENIENT

    in_words: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFidelity:
    """How an inexact strategy trains."""

    __pydantic_config__ = _LENIENT

    cannot_win: bool = False
    in_words: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownStages:
    """Whether strategies with stages were searched. The words are about their bound, or say why they were not."""

    __pydantic_config__ = _LENIENT

    searched: bool = False
    in_words: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTime:
    """The parts of a contestant's step time."""

    __pydantic_config__ = _LENIENT

    compute_seconds: float | None = None
    exposed_communication_seconds: float | None = None
    input_seconds: float | None = None
    idle_seconds: float | None = None
    busiest_link: str | None = None
    busiest_link_share: float | None = None
    fullest: str | None = None
    fullest_share: float | None = None
    in_words: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownContest:
    """One contestant of the proof. `step_seconds` are its measured steps, as means over the ranks."""

    __pydantic_config__ = _LENIENT

    name: str
    role: str | None = None
    strategy_id: str | None = None
    seconds: ShownInterval
    step_seconds: tuple[float, ...] = ()
    speedup_over_stock_ddp: ShownRatio | None = None
    exposed_seconds: float | None = None
    bytes_sent: float | None = None
    peak_memory_bytes: float | None = None
    cpu_share: float | None = None
    flags: tuple[str, ...] = ()
    time: ShownTime = ShownTime()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownWinner:
    """The winner, which is stock DDP if `beats_stock_ddp` is false."""

    __pydantic_config__ = _LENIENT

    name: str
    beats_stock_ddp: bool
    speedup_over_stock_ddp: ShownRatio | None = None
    headroom: InWords | None = None
    against: tuple[ShownRatio, ...] = ()
    in_words: str = ""
    stages: tuple[str, ...] = ()
    schedule: str | None = None
    training: str | None = None
    use: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSummary:
    """A whole verdict."""

    __pydantic_config__ = _LENIENT

    study: str
    model: str
    cluster: str
    num_trials: int
    num_failed_trials: int
    num_outages: int = 0
    tried: Mapping[str, int]
    winner: ShownWinner
    contests: tuple[ShownContest, ...]
    left_out: Mapping[str, str]
    other_cpu_share: float | None = None
    profile: InWords | None = None
    bound_seconds: float | None = None
    stages: ShownStages | None = None
    graphs: InWords | None = None
    loader: InWords | None = None
    prospect: InWords
    proposer: str | None = None
    ended: str | None = None
    proved_at_once: bool = False
    wall_seconds: float | None = None
    fidelity: Mapping[str, ShownFidelity]

    def __post_init__(self) -> None:
        names = [contest.name for contest in self.contests]
        if self.winner.name not in names:
            raise ValueError(f"the winner {self.winner.name!r} is no contestant (the winner took part in the proof)")
        if self.winner.beats_stock_ddp and self.winner.speedup_over_stock_ddp is None:
            raise ValueError("the winner has no speed-up (a winner that beats stock DDP was compared with it)")


def shown(fields: Mapping[str, Any]) -> ShownSummary:
    """Return the shown part of a summary that was just made."""
    return documents.parse(documents.without_file(fields), kind=SCHEMA_KIND, version=SCHEMA_VERSION, into=ShownSummary)


def load_shown(folder: StudyFolder) -> ShownSummary:
    """Read the summary of a study; raise InputError if the study has none, because it was not finished."""
    if not folder.summary.is_file():
        what = f"the study {folder.handle} has no verdict: it is not finished"
        hint = f"autosync tune --resume {folder.handle}"
        raise InputError(what, rule="a verdict comes with the proof, at the end of tuning", hint=hint)
    return documents.load(folder.summary, kind=SCHEMA_KIND, version=SCHEMA_VERSION, into=ShownSummary)[0]


def study_folder(name: str, path: Path) -> StudyFolder:
    """Return the folder of a study at a path; raise InputError if the path holds none."""
    folder = StudyFolder(path)
    if not folder.is_begun:
        rule = "a study is a folder that autosync tune has written"
        raise InputError(f"{name} is no study", rule=rule, hint="" if path.exists() else near_path_hint(path))
    return folder
