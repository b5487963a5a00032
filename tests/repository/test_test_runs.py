"""A file of tests changes no test of another file, and tests that take long begin."""

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.helpers.by_file import LONG, ByFile


def test_no_file_changes_how_hypothesis_tries_the_tests_of_others(root: Path) -> None:
    own = Path(__file__).resolve()
    loading = [path for path in (root / "tests").rglob("*.py") if "load_profile(" in path.read_text(encoding="utf-8")]
    assert [path for path in loading if path != own] == [root / "tests/conftest.py"], "use @settings on single tests"


def test_every_long_file_is_there(root: Path) -> None:
    assert not [name for name in LONG if not (root / name).exists()]


class _Worker:
    """A process that runs tests: it notes which."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.tests = tests
        self.sent: list[str] = []

    def send_runtest_some(self, numbers: Sequence[int]) -> None:
        self.sent += [self.tests[number] for number in numbers]


def test_long_files_begin() -> None:
    files = ("tests/cli/test_draw.py", LONG[1], "tests/test_units.py", LONG[0])
    tests = [f"{file}::test" for file in files]
    worker: Any = _Worker(tests)
    scheduler = ByFile.__new__(ByFile)
    scheduler.workqueue = OrderedDict((file, {test: False}) for file, test in zip(files, tests, strict=True))
    scheduler.assigned_work, scheduler.registered_collections = {}, {worker: tests}
    while scheduler.workqueue:
        scheduler._assign_work_unit(worker)
    assert worker.sent == [tests[1], tests[3], tests[0], tests[2]]
