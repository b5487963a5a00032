"""The file of a chosen schedule, which `autosync tune` writes and `autosync loop run --schedule` reads."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from autosync import documents
from autosync.loops.schedules import ScheduleChoice

KIND = "loop_schedule"
VERSION = 1


def write_choice(path: Path, choice: ScheduleChoice) -> None:
    """Write a choice as YAML, or as JSON if the name ends in .json."""
    documents.write(path, {"schema": f"autosync.{KIND}/{VERSION}", **asdict(choice)})


def read_choice(path: Path) -> ScheduleChoice:
    """Read a choice. Raise DocumentError with each mistake in the file."""
    return documents.load(path, kind=KIND, version=VERSION, into=ScheduleChoice)[0]
