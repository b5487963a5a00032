"""Finds hosts that storage serves worse than their share, and deals shards by measured rate. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autosync.errors import InputError

FALSE_ALARM = 0.001
"""The probability that any host is named although all are served alike."""

LEAST_DEFICIT = 0.1
"""A host that gets at least 90 % of its share is not named, however sure the difference is."""

MIN_MEASUREMENTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfairHost:
    """A host that gets less than its share, with the evidence.

    `share` is the rate that it gets over the rate that it should get. With a false alarm in at most one of 1,000 checks
    of fair hosts, `at_most` is the bound of this number.
    """

    host: str
    share: float
    at_most: float
    num_measurements: int

    def __str__(self) -> str:
        return (
            f"{self.host} is served at {self.share:.0%} of its share (surely below {self.at_most:.0%}; "
            f"{self.num_measurements} measurements)"
        )


def served_worse(
    rates: Mapping[str, Sequence[float]], shares: Mapping[str, float] | None = None
) -> tuple[UnfairHost, ...]:
    """Return the hosts that are served worse than their share, the worst first.

    `rates` has measured rates of each host, in bytes a second, taken one after another at the same times. Without
    `shares`, all should get the same. A host is compared with the median of the others, on a logarithmic scale, because
    noise multiplies rates. Fewer than three hosts have no such median: of two, the slower is compared with the faster.
    """
    from scipy import stats

    _check(rates, shares)
    if len(rates) < 2:
        return ()
    logs = {
        host: np.log(np.asarray(values, dtype=float) / (shares[host] if shares else 1.0))
        for host, values in rates.items()
    }
    found = []
    for host, mine in logs.items():
        others = [one for name, one in logs.items() if name != host]
        centres = [float(one.mean()) for one in others]
        middle = float(np.median(centres))
        other = others[int(np.argmin([abs(centre - middle) for centre in centres]))]
        # Welch's t: hosts need not be equally noisy.
        mine_error, other_error = mine.var(ddof=1) / len(mine), other.var(ddof=1) / len(other)
        error = mine_error + other_error
        freedom = error**2 / max(
            mine_error**2 / (len(mine) - 1) + other_error**2 / (len(other) - 1), np.finfo(float).tiny
        )
        difference = float(mine.mean()) - middle
        quantile = float(stats.t.ppf(1 - FALSE_ALARM / len(rates), max(freedom, 1.0)))
        bound = difference + quantile * math.sqrt(error)
        if bound < math.log1p(-LEAST_DEFICIT):
            found.append(
                UnfairHost(host=host, share=math.exp(difference), at_most=math.exp(bound), num_measurements=len(mine))
            )
    return tuple(sorted(found, key=lambda one: one.share))


def served_worse_both_ways(
    rates: Mapping[str, Sequence[float]], num_ranks: Mapping[str, float]
) -> tuple[UnfairHost, ...]:
    """Return the hosts that are served worse whatever limits storage, the worst first.

    Where it limits each request, a host with fewer ranks gets less. Where it limits each host, each rank of a host with
    more ranks gets less. So a host must get less than its share both as a host and for each of its ranks; the evidence
    is that of the milder one.
    """
    by_rank = {one.host: one for one in served_worse(rates, num_ranks)}
    both = [
        max(one, by_rank[one.host], key=lambda found: found.share) for one in served_worse(rates) if one.host in by_rank
    ]
    return tuple(sorted(both, key=lambda one: one.share))


def deal_shards(shard_bytes: Sequence[int], rates: Mapping[str, float]) -> dict[str, tuple[int, ...]]:
    """Return the numbers of the shards that each host should read, so that the last one is done early.

    The largest shard that is left goes to the host that would have read it first (the longest-processing-time rule for
    machines of different speeds). Each shard goes to one host.
    """
    if not rates or not all(0 < rate < math.inf for rate in rates.values()):
        raise InputError(f"rates are {dict(rates)}", rule="a finite rate above 0 for each host, one host or more")
    if any(size < 0 for size in shard_bytes):
        raise InputError("a shard has a negative size", rule="sizes in bytes of 0 or more")
    loads = dict.fromkeys(rates, 0.0)
    dealt: dict[str, list[int]] = {host: [] for host in rates}
    for shard in sorted(range(len(shard_bytes)), key=lambda one: (-shard_bytes[one], one)):
        size = shard_bytes[shard]
        host = min(rates, key=lambda one: ((loads[one] + size) / rates[one], len(dealt[one]) / rates[one]))
        loads[host] += size
        dealt[host].append(shard)
    return {host: tuple(sorted(shards)) for host, shards in dealt.items()}


def _check(rates: Mapping[str, Sequence[float]], shares: Mapping[str, float] | None) -> None:
    for host, values in rates.items():
        if len(values) < MIN_MEASUREMENTS or not all(0 < value < math.inf for value in values):
            rule = f"{MIN_MEASUREMENTS} finite rates above 0 or more for each host"
            raise InputError(f"{host} has rates {list(values)[:8]}", rule=rule)
    if shares is not None and (set(shares) != set(rates) or not all(0 < one < math.inf for one in shares.values())):
        raise InputError(f"shares are {dict(shares)}", rule=f"a number above 0 for each of {', '.join(rates)}")
