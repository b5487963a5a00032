"""The interface of simulators: a simulator predicts the step time of a strategy without running it.

A simulator is made for one model on one cluster. `catalogue` opens simulators by name. The suite in
`autosync.testing.simulators` checks new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from autosync.datasets.schema import Record
from autosync.strategy.representation import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A predicted step time and its uncertainty.

    `spread` is a standard deviation of the logarithm of the seconds: 0.05 says that most are within 5 %. It is 0
    if the simulator does not know.
    """

    seconds: float
    spread: float = 0.0


class Simulator(Protocol):
    """Predicts the step times of one model on one cluster.

    One thread at a time uses it. It changes none of its arguments and writes no files.
    """

    @property
    def name(self) -> str:
        """The name in lists of simulators."""

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        """Return one prediction for each strategy, in their order. Each strategy is legal for the model on the cluster.

        A prediction depends only on its strategy and on what was learned, not on other strategies or earlier calls.
        Lists may be long (tens of thousands), so strategies should share work.
        """

    def learn(self, records: Sequence[Record]) -> None:
        """Learn from all trials of this model on this cluster so far, in their order, including failures.

        Every call gets all records again. The same records lead to the same simulator, whatever it learned before. A
        simulator that cannot learn does nothing.
        """
