"""Computes the bytes that transfers and plans send over every link: nodes' interfaces, within nodes, racks' uplinks.

It uses the closed forms of `flows` and never expands rounds. When E elements are split into n chunks, each has
q = E // n elements and the first r = E mod n of them one more. So the elements on a link are q times the chunks that
pass it, plus the number of longer chunks among them. Both numbers are computed once for each arrangement of members on
nodes. `expanded_traffic` computes the same by summing over the moves of `expansion`; a test compares the two.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from autosync.plan.expansion import chunk_bounds, expand, num_chunks
from autosync.plan.flows import CollectiveFlow, Integers, flow
from autosync.plan.places import Places, places_of
from autosync.plan.types import Algorithm, Collective, Groups, Plan, Transfer
from autosync.specs.cluster import ClusterSpec

Vector = npt.NDArray[np.float64]
Contributions = Mapping[int, int]
"""The elements that each rank contributed, by rank, for a transfer whose size is known only at run time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Bytes by node and by rack, in the order of the cluster spec; whole numbers unless amortised.

    `node_out` and `node_in` pass the node's interface, `node_within` stays within the node, `rack_out` and `rack_in`
    pass the rack's uplink.
    """

    node_out: Vector
    node_in: Vector
    node_within: Vector
    rack_out: Vector
    rack_in: Vector

    @property
    def links(self) -> Vector:
        """The bytes of all links in one array."""
        return np.concatenate((self.node_out, self.node_in, self.node_within, self.rack_out, self.rack_in))


def transfer_traffic(
    transfer: Transfer, cluster: ClusterSpec, *, contributions: Contributions | None = None
) -> Traffic:
    """Return the bytes of one run of a transfer on each link: as planned, or with the given contributions."""
    return _sum(cluster, [(transfer, 1.0, contributions)])


def plan_traffic(
    plan: Plan,
    cluster: ClusterSpec,
    *,
    iteration: int | None = None,
    contributions: Mapping[int, Contributions] | None = None,
) -> Traffic:
    """Return the bytes on each link if every transfer runs once, or only the transfers that take place in `iteration`.

    `contributions` are given by the transfer's position in the plan's operations.
    """
    known = contributions or {}
    return _sum(
        cluster,
        (
            (operation, 1.0, known.get(position))
            for position, operation in enumerate(plan.operations)
            if isinstance(operation, Transfer) and (iteration is None or (iteration + 1) % operation.every == 0)
        ),
    )


def amortised_traffic(plan: Plan, cluster: ClusterSpec, *, travelled: Mapping[int, float] | None = None) -> Traffic:
    """Return the mean bytes of a step on each link: a transfer that runs every k steps counts as 1/k.

    `travelled` has the expected share of bytes that travels, by the transfer's position in the plan's operations, for
    transfers of which not all do.
    """
    shares = travelled or {}
    transfers = (
        (operation, shares.get(position, 1.0))
        for position, operation in enumerate(plan.operations)
        if isinstance(operation, Transfer)
    )
    return _sum(cluster, ((transfer, share / transfer.every, None) for transfer, share in transfers))


@dataclass(frozen=True, slots=True, eq=False)
class _Arrangement:
    """Groups of equal length with the links that they use.

    Each group moves chunk `outer_index` of the `outer_count` chunks of the whole buffer.
    """

    flow: CollectiveFlow
    outer_count: int
    outer_index: int
    pairs: Integers
    links: Integers
    num_links: int
    chunks: Vector
    long_chunks: dict[int, Vector] = field(default_factory=dict)

    def divide(self, transfer: Transfer) -> tuple[int, int]:
        """Return the length of a chunk, and the number of chunks that are one element longer."""
        size = _chunk(transfer.num_elements, self.outer_count, self.outer_index)
        if transfer.collective in ("gather_v", "all_gather_v"):
            return size, 0
        return divmod(size, self.flow.num_chunks)

    def num_long(self, rest: int) -> Vector:
        """Return for each link how many of the chunks that pass it are among the first `rest`."""
        found = self.long_chunks.get(rest)
        if found is None:
            bounds = np.minimum(np.arange(self.flow.num_chunks + 1), rest)
            found = self.long_chunks[rest] = self.on_links(bounds)
        return found

    def on_links(self, bounds: Integers) -> Vector:
        """Return the elements on each link, for chunks that begin at `bounds`."""
        return _count(self.flow.num_elements(bounds), self.pairs, self.links, self.num_links)


def _traffic(places: Places, link_bytes: Vector) -> Traffic:
    cuts = np.cumsum([places.num_nodes, places.num_nodes, places.num_nodes, places.num_racks])
    node_out, node_in, node_within, rack_out, rack_in = np.split(link_bytes, cuts)
    return Traffic(node_out=node_out, node_in=node_in, node_within=node_within, rack_out=rack_out, rack_in=rack_in)


def _count(amounts: Integers, pairs: Integers, links: Integers, num_links: int) -> Vector:
    """Sum amounts by link. There is one amount for each term; pairs repeat the terms for each group."""
    weights = amounts[pairs % max(1, len(amounts))].astype(np.float64)
    return np.bincount(links, weights=weights, minlength=num_links).astype(np.float64)


def _chunk(num_elements: int, count: int, index: int) -> int:
    """Return the length of chunk `index` of `count`."""
    size, rest = divmod(num_elements, count)
    return size + (index < rest)


@functools.lru_cache(maxsize=1024)
def _arrangements(
    collective: Collective, algorithm: Algorithm, groups: Groups, within: Groups, places: Places
) -> tuple[_Arrangement, ...]:
    alike: dict[tuple[int, int, int], list[tuple[int, ...]]] = defaultdict(list)
    outer = {rank: (len(group), index) for group in within for index, rank in enumerate(group)}
    for group in groups:
        shares = {outer.get(rank, (1, 0)) for rank in group}
        assert len(shares) == 1, "the members of a group own the same chunk"
        if len(group) > 1:
            alike[len(group), *shares.pop()].append(group)
    return tuple(
        _arrange(flow(collective, algorithm, length), chosen, count, index, places)
        for (length, count, index), chosen in alike.items()
    )


def _arrange(
    terms: CollectiveFlow, groups: Sequence[tuple[int, ...]], count: int, index: int, places: Places
) -> _Arrangement:
    ranks = np.array(groups)
    pairs, links = places.links(ranks[:, terms.source].ravel(), ranks[:, terms.destination].ravel())
    amounts = terms.num_elements(np.arange(terms.num_chunks + 1))
    chunks = _count(amounts, pairs, links, places.num_links)
    return _Arrangement(terms, count, index, pairs, links, places.num_links, chunks)


def _sum(cluster: ClusterSpec, transfers: Iterable[tuple[Transfer, float, Contributions | None]]) -> Traffic:
    """Return the sum of the traffic of transfers, each with a weight.

    The caller must keep the transfers alive until this returns, because their groups are looked up by `id`.
    """
    places = places_of(cluster)
    total = np.zeros(places.num_links)
    lengths: dict[_Arrangement, float] = defaultdict(float)
    long_ones: dict[tuple[_Arrangement, int], float] = defaultdict(float)
    known: dict[tuple[Collective, Algorithm, int, int], tuple[_Arrangement, ...]] = {}
    for transfer, weight, contributions in transfers:
        if contributions is not None:
            total += weight * _contributed(transfer, contributions, places)
            continue
        # The operations of a plan share their groups; hashing the ranks of each operation would take most of the time.
        key = (transfer.collective, transfer.algorithm, id(transfer.groups), id(transfer.within))
        found = known.get(key)
        if found is None:
            found = known[key] = _arrangements(
                transfer.collective, transfer.algorithm, transfer.groups, transfer.within, places
            )
        for arrangement in found:
            size, rest = arrangement.divide(transfer)
            lengths[arrangement] += weight * size * transfer.item_bytes
            if rest:
                long_ones[arrangement, rest] += weight * transfer.item_bytes
    for arrangement, num_bytes in lengths.items():
        total += num_bytes * arrangement.chunks
    for (arrangement, rest), num_bytes in long_ones.items():
        total += num_bytes * arrangement.num_long(rest)
    return _traffic(places, total)


def _contributed(transfer: Transfer, contributions: Contributions, places: Places) -> Vector:
    """Return the bytes on each link of a transfer with the sizes that members (or a sole sender) had at run time."""
    assert not transfer.within, "what is split has a size that is known"
    total = np.zeros(places.num_links)
    for group in transfer.groups:
        terms = flow(transfer.collective, transfer.algorithm, len(group))
        sizes = _contributed_sizes(transfer.collective, contributions, group)
        arrangement = _arrange(terms, [group], 1, 0, places)
        total += transfer.item_bytes * arrangement.on_links(np.cumsum([0, *sizes]))
    return total


def _contributed_sizes(collective: Collective, contributions: Contributions, group: tuple[int, ...]) -> list[int]:
    if collective in ("gather_v", "all_gather_v"):
        return [contributions[rank] for rank in group]
    if collective == "broadcast":
        return [contributions[group[0]]]
    raise ValueError(f"{collective} has no contributions (gather_v, all_gather_v and broadcast have)")


def expanded_traffic(
    transfer: Transfer, cluster: ClusterSpec, *, contributions: Contributions | None = None
) -> Traffic:
    """Return the same as `transfer_traffic`, by summing over the moves of every group."""
    places = places_of(cluster)
    link_bytes = np.zeros(places.num_links)
    for group in transfer.groups:
        bounds = _bounds(transfer, group, contributions)
        for move in expand(transfer.collective, transfer.algorithm, len(group)):
            num_bytes = (bounds[move.last] - bounds[move.first]) * transfer.item_bytes
            ends = np.array([[group[move.source]], [group[move.destination]]])
            _, links = places.links(*ends)
            link_bytes[links] += num_bytes
    return _traffic(places, link_bytes)


def _bounds(transfer: Transfer, group: tuple[int, ...], contributions: Contributions | None) -> Sequence[int]:
    """Return where the chunks of one group's buffer begin and the last one ends."""
    if contributions is not None:
        sizes = _contributed_sizes(transfer.collective, contributions, group)
        return [sum(sizes[:end]) for end in range(len(sizes) + 1)]
    start, stop = 0, transfer.num_elements
    for outer in transfer.within:
        if group[0] in outer:
            index = outer.index(group[0])
            start, stop = chunk_bounds(transfer.num_elements, len(outer))[index : index + 2]
    if transfer.collective in ("gather_v", "all_gather_v"):
        return [transfer.num_elements * end for end in range(len(group) + 1)]
    if transfer.collective in ("reduce", "broadcast"):
        return [0, stop - start]
    return chunk_bounds(stop - start, num_chunks(transfer.collective, len(group), transfer.algorithm))
