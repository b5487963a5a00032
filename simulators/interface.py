"""What a simulator is: it says how long a step takes by a strategy that nobody has run.

A simulator is of one model on one cluster. Simulators are opened by name (`catalogue`), and whoever writes one holds it
against `autosync.testing.simulators`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from autosync.datasets.schema import Record
from autosync.strategy.representation import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """How long a step takes, and how unsure that is.

    `spread` is a standard deviation of the logarithm of the seconds: 0.05 says that they are mostly within 5 %. It is 0
    where a simulator cannot tell.
    """

    seconds: float
    spread: float = 0.0


class Simulator(Protocol):
    """Predicts the step times of one model on one cluster.

    One thread at a time uses it. It changes nothing that it is given and writes no files.
    """

    @property
    def name(self) -> str:
        """What it is called where simulators are listed."""

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        """One prediction a strategy, in their order; each strategy is legal for the model on the cluster.

        A prediction depends on its strategy and on what was learned, and on nothing else: not on the others, nor on
        what was asked before. Lists may be long (tens of thousands): what can be shared among strategies should be.
        """

    def learn(self, records: Sequence[Record]) -> None:
        """Take in what was measured so far: all trials of this model on this cluster, in their order, failures too.

        Each call stands for itself: what earlier calls were given is in `records` again, and the same records leave the
        same simulator, whatever it learned before. A simulator that cannot learn does nothing.
        """
