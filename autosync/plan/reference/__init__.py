"""The reference: what a plan means, as numpy in one process, operations in any random legal order.

It proves in milliseconds that a strategy is exact, that it cannot deadlock, and which bytes cross which link.
Runtime and simulators are held against it.
"""

from autosync.plan.reference.interpreter import Outcome, interpret
from autosync.plan.reference.meaning import meaning
from autosync.plan.reference.single import single_process
from autosync.plan.reference.workload import Workload

__all__ = ["Outcome", "Workload", "interpret", "meaning", "single_process"]
