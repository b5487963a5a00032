"""Counts the strategies of a space.

It counts representations. A strategy chooses the overlap; for each variable no cut, or an axis and the sizes of two or
more parts; a way to distribute all parts over messages; and for each message a synchroniser with a codec
(synchronisers that are equal on the cluster count once), no slices or one of the slice sizes, a lane and a priority.
It does not count names, the order of writing, and cuts into one part. PowerSGD counts only in messages of one uncut
variable, so the count is a lower bound.

With n parts that may share messages and s settings for each message, there are T_n(s) = sum_k S(n, k) s^k ways (S:
Stirling numbers of the second kind; T: Touchard's polynomials). If each part may also travel alone, in b more ways, the
count is the n-fold product of (x + b), in which x^j stands for T_j(s). If each variable can be cut into k parts in w_k
ways, it is the product over variables of sum_k w_k (x + b)^k. By Dobinski's formula T_j(s) is the j-th moment of a
Poisson variable with mean s, so the count is the mean of that product: one sum of positive terms, computed with
logarithms.

    count = sum_m  e^-s s^m / m!  *  product over variables v of  sum_k w_vk (m + b_v)^k

Parts of different dtypes never share a message, so the counts of the dtypes are multiplied.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.legality import MAX_PARTS
from autosync.strategy.parts import parts_of
from autosync.strategy.space.choices import Choices, Setting
from autosync.strategy.space.limits import Limits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MAX_TERMS = 4096
"""A sum of at most this many terms is computed term by term; a longer one as an integral over as many points."""

NEGLIGIBLE = 60.0
"""Terms whose logarithm is smaller than the largest one's by more than this are ignored; they change no digit."""


def log10_size(model: ModelSpec, limits: Limits, choices: Choices) -> float:
    """Return the decimal logarithm of the number of strategies in a space."""
    total = math.log(len(limits.overlaps))
    for dtype, settings in choices.dense.items():
        variables = [variable for variable in model.variables if variable.dtype == dtype]
        total += _log_count(variables, settings, limits, choices)
    return total / math.log(10)


def _log_count(variables: Sequence[Variable], settings: Sequence[Setting], limits: Limits, choices: Choices) -> float:
    orders = choices.num_lanes * choices.num_priorities
    shared = sum(_num_ways(setting, limits) for setting in settings if not setting.rank) * orders
    groups = Counter(_Factor.of(variable, settings, limits, choices, orders) for variable in variables)
    factors = list(groups.items())
    num_parts = sum(factor.max_parts * count for factor, count in factors)
    return _log_poisson_mean(factors, shared, num_parts)


def _num_ways(setting: Setting, limits: Limits) -> int:
    return 1 + len(limits.slice_bytes) if setting.slices else 1


@dataclass(frozen=True, slots=True)
class _Factor:
    """One variable's factor of the product.

    `alone` and `alone_uncut` are the numbers of ways in which one of its parts, and the uncut variable, may travel
    alone. `log_cuts[i]` is the logarithm of the number of ways to cut it into i + 2 parts.
    """

    alone: int
    alone_uncut: int
    log_cuts: tuple[float, ...]

    @classmethod
    def of(cls, variable: Variable, dense: Sequence[Setting], limits: Limits, choices: Choices, orders: int) -> _Factor:
        alone = sum(_num_ways(setting, limits) for setting in choices.alone[variable.kind]) * orders
        side = parts_of(variable, None)[0].smaller_side
        ranked = sum(_num_ways(setting, limits) for setting in dense if 0 < setting.rank < side) * orders
        return cls(alone, alone + ranked, _log_cuts(variable, limits) if choices.can_cut else ())

    @property
    def max_parts(self) -> int:
        return len(self.log_cuts) + 1

    def log(self, points: Floats) -> Floats:
        """Return the logarithm of the factor at each m."""
        import numpy as np

        base = np.log(points + self.alone)
        total = np.log(points + self.alone_uncut)
        for index, log_ways in enumerate(self.log_cuts):
            total = np.logaddexp(total, log_ways + (index + 2) * base)
        return np.asarray(total, dtype=np.float64)


def _log_cuts(variable: Variable, limits: Limits) -> tuple[float, ...]:
    most = min(limits.max_parts, MAX_PARTS, max(variable.shape, default=1))
    found: list[float] = []
    for num_parts in range(2, most + 1):
        sizes = [size for size in variable.shape if size >= num_parts]
        if limits.uneven_parts:
            logs = [_log_binomial(size - 1, num_parts - 1) for size in sizes]
            largest = max(logs)
            found.append(largest + math.log(math.fsum(math.exp(value - largest) for value in logs)))
        else:
            found.append(math.log(len(sizes)))
    return tuple(found)


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _log_poisson_mean(factors: Sequence[tuple[_Factor, int]], mean: int, num_parts: int) -> float:
    """Return the logarithm of the mean of the product of all factors over a Poisson variable."""
    import numpy as np

    def log_terms(points: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            total = np.zeros_like(points)
            for factor, count in factors:
                total = total + count * factor.log(points)
        if not mean:
            return total
        return total + points * math.log(mean) - mean - _log_factorials(points)

    if not mean:
        return float(log_terms(np.zeros(1))[0])
    low, high = _window(log_terms, mean, num_parts)
    if high - low <= MAX_TERMS:
        return float(np.logaddexp.reduce(log_terms(np.arange(low, high + 1, dtype=np.float64))))
    points = np.linspace(low, high, MAX_TERMS + 1)
    return float(np.logaddexp.reduce(log_terms(points))) + math.log((high - low) / MAX_TERMS)


def _log_factorials(points: Floats) -> Floats:
    import numpy as np

    return np.array([math.lgamma(point + 1) for point in points.tolist()])


def _window(log_terms: Callable[[Floats], Floats], mean: int, num_parts: int) -> tuple[int, int]:
    """Return the first and last m that matter; all terms outside are negligible."""
    import numpy as np

    high = 16
    # Beyond this m terms fall, because the product grows no faster than m to the number of parts.
    while high * math.log(max(high / mean, 1e-9)) <= num_parts:
        high *= 2
    high *= 4
    low = 0
    while high - low > MAX_TERMS:
        points = np.unique(np.linspace(low, high, 513).round())
        terms = log_terms(points)
        kept = np.flatnonzero(terms > terms.max() - NEGLIGIBLE)
        first, last = max(kept[0] - 1, 0), min(kept[-1] + 1, len(points) - 1)
        narrower = int(points[first]), int(points[last])
        if narrower[1] - narrower[0] > 0.75 * (high - low):
            break
        low, high = narrower
    return low, high
