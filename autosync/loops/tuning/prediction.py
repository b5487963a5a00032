"""Predicts the seconds of an epoch from the records of each block, the bytes that travel, and measured costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autosync.loops.declarations import Records
from autosync.loops.dependences import LoopAnalysis
from autosync.loops.record_blocks import Blocks, split
from autosync.loops.schedules import Cell, LoopSchedule
from autosync.loops.table_rows import plan_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLinks:
    """The node of each rank, and the rates of nodes in bytes per second: out, in, and between ranks of the node."""

    nodes: tuple[int, ...]
    rates_out: tuple[float, ...]
    rates_in: tuple[float, ...]
    rates_within: tuple[float, ...]

    def rate(self, source: int, target: int) -> float:
        """Return the rate at which a rank sends to another one."""
        one, other = self.nodes[source], self.nodes[target]
        return self.rates_within[one] if one == other else min(self.rates_out[one], self.rates_in[other])


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCosts:
    """The seconds that each rank computes for a record, and the seconds that a rank spends on a block beside these."""

    record_seconds: tuple[float, ...]
    block_seconds: float = 0.0


def predict_epoch(
    analysis: LoopAnalysis, schedule: LoopSchedule, records: Records, costs: LoopCosts, links: RankLinks
) -> float:
    """Return the seconds of an epoch of a schedule without servers, once its blocks have begun to go round."""
    blocks = split(schedule, records)
    block_bytes = [0]
    if schedule.rotate is not None:
        tables = analysis.loop.tables
        rotating = plan_rows(analysis, schedule, blocks, records).rotating
        block_bytes = [sum(len(one) * tables[name].row_bytes for name, one in rows.items()) for rows in rotating]
    first, second = _ends_of_epochs(schedule, blocks, block_bytes, costs, links)
    return second - first


def _ends_of_epochs(
    schedule: LoopSchedule, blocks: Blocks, block_bytes: list[int], costs: LoopCosts, links: RankLinks
) -> tuple[float, float]:
    """Play two epochs: a rank runs its cells in order, and a cell begins when its block has arrived."""
    is_free = [0.0] * schedule.num_ranks
    is_link_free = [0.0] * len(links.rates_out)
    has_arrived = [0.0] * schedule.num_rotating
    cells = sorted(schedule.cells, key=lambda cell: (cell.step, cell.rank))
    targets = _targets(cells)
    ends = []
    for _ in range(2):
        for cell in cells:
            num_records = len(blocks[cell.rank, cell.rotating])
            begin = max(is_free[cell.rank], has_arrived[cell.rotating])
            end = begin + costs.block_seconds + num_records * costs.record_seconds[cell.rank]
            is_free[cell.rank] = end
            has_arrived[cell.rotating] = end
            target = targets[cell]
            if target != cell.rank and schedule.rotate is not None:
                node = links.nodes[cell.rank]
                travels = block_bytes[cell.rotating] / links.rate(cell.rank, target)
                sent = max(end, is_link_free[node]) + travels
                is_link_free[node] = sent
                has_arrived[cell.rotating] = sent
        ends.append(max(is_free))
    return ends[0], ends[1]


def _targets(cells: list[Cell]) -> Mapping[Cell, int]:
    """Return the rank that has each cell's block next; the last one's is the first of the next epoch."""
    by_block: dict[int, list[Cell]] = {}
    for cell in cells:
        by_block.setdefault(cell.rotating, []).append(cell)
    return {
        cell: users[(place + 1) % len(users)].rank for users in by_block.values() for place, cell in enumerate(users)
    }
