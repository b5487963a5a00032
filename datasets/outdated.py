"""Whether a record's strategy would be carried out otherwise today than when it was measured.

A version of autosync may carry out the same strategy in another way. Halving-doubling, for example, once paired the
farthest ranks first. The measured time is then that of another plan, and says nothing about today's.
"""

from __future__ import annotations

import math

from autosync.datasets.facts import plan_facts
from autosync.datasets.schema import Record
from autosync.documents import without_file
from autosync.errors import InputError
from autosync.plan.lowering import lower
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.files import parse_strategy

_COMPARED = ("sent_bytes", "wire_seconds", "num_sends")
_ROUNDING = 1e-6


def is_outdated(record: Record, model: ModelSpec, cluster: ClusterSpec) -> bool:
    """Whether today's plan has other sends, or other bytes on links, than the plan that was measured.

    Records without these facts count as valid.
    """
    if record.strategy is None or record.plan is None:
        return False
    try:
        strategy = parse_strategy(without_file(dict(record.strategy)))
        today = plan_facts(lower(strategy, model, cluster), cluster)
    except InputError:
        return True
    return not all(
        math.isclose(getattr(today, name), getattr(record.plan, name), rel_tol=_ROUNDING) for name in _COMPARED
    )
