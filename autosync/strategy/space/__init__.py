"""The space of strategies: all strategies that are legal for a model on a cluster within the user's limits.

The space counts its strategies, checks whether a strategy belongs to it, draws strategies aspect by aspect, changes one
aspect of a strategy, and crosses two strategies.
"""

from autosync.strategy.space.limits import Limits
from autosync.strategy.space.space import Space

__all__ = ["Limits", "Space"]
