"""Which process runs which tests when several run side by side, and which tests begin."""

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SHARING_FOLDERS = ("tests/report/", "tests/script/", "tests/simulators/learned/")
"""Folders whose files share what is costly to make."""

LONG = (
    "tests/doctor/test_examine.py",
    "tests/runtime/test_checkpoints.py",
    "tests/runtime/test_exactness.py",
    "tests/runtime/test_known_systems.py",
    "tests/runtime/test_varying.py",
    "tests/script/",
    "tests/script_tuning/",
    "tests/testing/test_synchronisers.py",
)
"""Files and folders with few tests, of which some take minutes. Were they last, all processes but one would wait."""


class ByFile(LoadScopeScheduling):
    """Runs the tests of a file in one process, and those of some folders: what they share is then made once."""

    def _split_scope(self, nodeid: str) -> str:
        found = next((folder for folder in SHARING_FOLDERS if nodeid.startswith(folder)), None)
        return found or nodeid.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        first = next((scope for scope in self.workqueue if scope.startswith(LONG)), None)
        if first is not None:
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)
