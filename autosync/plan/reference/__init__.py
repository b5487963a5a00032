"""The reference: interprets a plan with numpy in one process, in a random legal order of its operations.

It shows in milliseconds whether a strategy is exact, whether it can deadlock, and how many bytes cross each link.
Tests compare the runtime and the simulators with it.
"""

from autosync.plan.reference.interpreter import Outcome, interpret
from autosync.plan.reference.meaning import meaning
from autosync.plan.reference.single import single_process
from autosync.plan.reference.workload import Workload

__all__ = ["Outcome", "Workload", "interpret", "meaning", "single_process"]
