"""The space of strategies: all that are legal for a model on a cluster under the limits that a user set.

It counts itself, tells whether a strategy is in it, draws strategies aspect by aspect, changes one aspect of a strategy
and crosses two.
"""

from autosync.strategy.space.limits import Limits
from autosync.strategy.space.space import Space

__all__ = ["Limits", "Space"]
