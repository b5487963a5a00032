"""The words in pictures of plans: a heading for each block of messages, and a short caption for each stage."""

from __future__ import annotations

from collections.abc import Sequence

from autosync.pictures.groups import Group
from autosync.pictures.stages import Stage
from autosync.plan.types import Plan
from autosync.specs.cluster import Rank
from autosync.strategy.wording import abbreviated, count, spread
from autosync.units import format_size

_STARTS = {
    "grad": "gradients",
    "rows": "touched rows of gradients",
    "factors": "the two factors of gradients",
}
_TRANSFERS = {
    "reduce": "summed at one rank",
    "broadcast": "from one rank to all",
    "all_reduce": "all get the sum",
    "reduce_scatter": "each sums its share",
    "all_gather": "all get all shares",
    "gather_v": "everybody's, at one rank",
    "all_gather_v": "all get everybody's",
}
_BY_WORK = {
    "merge_rows": ("touched rows to everybody", "only rows that a batch touched travel; all merge them and update"),
    "rebuild": ("factors to everybody", "two thin factors travel instead of their product; all multiply them out"),
}
"""The heading and the caption of a block, by the kind of local operation that identifies it. Blocks with servers have
others."""


def heading(group: Group) -> tuple[str, str]:
    """Return the heading of a group and a sentence about its messages."""
    stages = group.stages[1:]
    kinds = {stage.what for stage in stages}
    name, told = _way(stages, kinds)
    codec = next((stage.manner for stage in stages if stage.what == "encode"), "")
    return (f"{name}, encoded: {codec}" if codec else name), told


def _way(stages: Sequence[Stage], kinds: set[str]) -> tuple[str, str]:
    transfers = [stage for stage in stages if stage.is_transfer]
    if not transfers:
        return "nothing to send", "the only worker updates its parameters"
    if stages[0].state == "own parameter":
        return _averaging(stages, transfers[0])
    if any(stage.what in ("reduce", "gather_v") and stage.manner == "star" for stage in transfers):
        return _serving(stages, kinds)
    for kind, words in _BY_WORK.items():
        if kind in kinds:
            return words
    if any(stage.sharded and stage.what == "update" for stage in stages):
        return "sharded", "each worker sums and updates its share, then the new parameters are put together"
    if "all_gather_v" in kinds:
        return "all-gather", "what cannot be summed on the way is decoded and averaged by all"
    if len({stage.groups for stage in transfers}) > 1:
        return "all-reduce, within nodes first", "nodes sum inside, meet each other with the sums, and share the result"
    return "all-reduce", "every worker gets the average of all gradients and updates its own copy"


def _averaging(stages: Sequence[Stage], meeting: Stage) -> tuple[str, str]:
    steps = "every step" if meeting.every == 1 else f"every {meeting.every} steps"
    outer = any(stage.what == "outer" for stage in stages)
    then = "an outer optimizer steps with the average" if outer else "parameters are averaged"
    return f"own steps, a meeting {steps}", f"each worker trains for itself; {steps} {then}"


def _serving(stages: Sequence[Stage], kinds: set[str]) -> tuple[str, str]:
    name = "touched rows through servers" if "merge_rows" in kinds else "parameter servers"
    late = max(stage.lag for stage in stages)
    if late:
        return f"{name}, {count(late, 'step')} late", (
            f"workers go on with parameters that miss the last {'update' if late == 1 else f'{late} updates'}"
        )
    update = next(stage for stage in stages if stage.what == "update")
    back = next((place for place, stage in enumerate(stages) if stage.what == "broadcast"), len(stages))
    if stages.index(update) < back:
        return name, "a server collects, updates, and sends the new parameters back"
    return name, "a server collects and sends the average back; every worker updates"


def start_words(group: Group) -> str:
    """Return the words for the data that ranks begin with."""
    return _STARTS.get(group.stages[0].what, "gradients")


def stage_words(group: Group, row: Sequence[int], ranks: Sequence[Rank]) -> tuple[str, str]:
    """Return the name of a row in the words of the plan, and a caption in plain words."""
    chosen = [group.stages[place] for place in row]
    first = chosen[0]
    if not first.is_transfer:
        name = ", ".join(f"{one.what} {one.manner}".strip() if one.what == "update" else one.what for one in chosen)
        return name, _when(chosen)
    return _transfer_words(group, row[0], ranks)


def _transfer_words(group: Group, place: int, ranks: Sequence[Rank]) -> tuple[str, str]:
    stage = group.stages[place]
    num_bytes = sum(strand.stages[place].num_bytes for strand in group.strands)
    each = " each" if stage.what in ("gather_v", "all_gather_v") else ""
    plain = "shares meet between nodes" if stage.within else _TRANSFERS[stage.what]
    if len(ranks) > len({rank.node for rank in ranks}) and _is_within_nodes(stage, ranks):
        plain = f"in each node: {plain}"
    if stage.every > 1:
        plain += f", every {stage.every} steps"
    return f"{stage.what}, {stage.manner}: {format_size(num_bytes)}{each}", plain


def _is_within_nodes(stage: Stage, ranks: Sequence[Rank]) -> bool:
    return all(len({ranks[rank].node for rank in group}) == 1 for group in stage.groups)


def _when(stages: Sequence[Stage]) -> str:
    words = []
    if stages[0].lag:
        words.append(f"what was sent {count(stages[0].lag, 'step')} ago")
    if any(stage.after_step for stage in stages):
        words.append("after step()")
    if stages[0].every > 1:
        words.append(f"every {stages[0].every} steps")
    if stages[0].sharded:
        words.append("each its share")
    return ", ".join(words)


def overlap_words(plan: Plan) -> str:
    """Return the words for the time during which transfers may run."""
    if plan.overlap == "backward":
        return "transfers overlap the backward pass"
    return "transfers overlap the backward pass and the next forward pass, up to each parameter's use"


def parts_words(parts: Sequence[str], num_messages: int) -> str:
    """Return the words for the parts that a strand carries."""
    return abbreviated(parts, most=2) if num_messages == 1 else count(num_messages, "message")


def numbers_words(numbers: Sequence[int]) -> str:
    """Return the words for lane numbers or priorities."""
    return spread(numbers).replace(" to ", "–") if numbers else ""
