"""The result of a tuning run for users: the verdict, the parts of a step's time, the winner, and how to use it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autosync.cli.contest_table import ContestRow, format_contest
from autosync.specs.background_load import BUSY_SHARE
from autosync.strategy.wording import wrapped

MOST_STAGES = 12
"""The number of stages that are shown."""

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autosync.search.shown_summary import ShownContest, ShownSummary


def describe(found: ShownSummary, folder: Path, *, bundle: Path | None = None) -> str:
    """Return the verdict. Its paragraphs are about the gain, its cause, the winner, and the use of the winner.

    `folder` is the study's folder. `bundle` is the winner's file, if it is not the one in that folder.
    """
    told = [_doubts(found), _ratios(found), _winner(found), _undivided(found)]
    blocks = [
        wrapped([*_stopped(found), _tried(found)]),
        [format_contest([_row(one) for one in found.contests])],
        *map(wrapped, told),
        _use(found),
    ]
    text = "\n\n".join("\n".join(block) for block in blocks if block)
    what = "" if found.winner.beats_stock_ddp else " (stock DDP's buckets as a strategy)"
    return f"{text}\n\nbundle: {bundle or folder / 'best.yaml'}{what}\nstudy:  {folder}"


def _stopped(found: ShownSummary) -> list[str]:
    """Return why the search ended before its limits, if it did."""
    if found.ended is None:
        return []
    trials = "1 trial" if found.num_trials == 1 else f"{found.num_trials} trials"
    return [f"Stopped after {trials}: {found.ended}."]


def _tried(found: ShownSummary) -> str:
    count, failed, outages = found.num_trials, found.num_failed_trials, found.num_outages
    text = "1 strategy tried" if count == 1 else f"{count} strategies tried"
    if count > 1:
        text += f" ({', '.join(_of_origin(origin, number) for origin, number in found.tried.items())})"
    if failed:
        text += f", {failed} of them failed (the study says why)"
    if outages:
        text += f"; {outages} more trial{'s' if outages != 1 else ''} ended by no fault of a strategy, and began again"
    if len(found.contests) == 1:
        return f"{text}. Stock DDP alone:"
    if found.proved_at_once or count == 0:
        return f"{text}. Stock DDP and the strategies that were predicted to be fastest, measured in turn:"
    return f"{text}. Stock DDP and the fastest others, measured again in turn:"


def _of_origin(origin: str, number: int) -> str:
    if origin == "baseline":
        return "stock DDP"
    return f"{number} {origin}" + ("s" if origin == "preset" and number > 1 else "")


def _row(one: ShownContest) -> ContestRow:
    seconds, speedup = one.seconds, one.speedup_over_stock_ddp
    return ContestRow(
        name=one.name,
        milliseconds=(seconds.value * 1e3, seconds.low * 1e3, seconds.high * 1e3),
        speedup=None if speedup is None else (speedup.value, speedup.low, speedup.high),
        exposed_seconds=one.exposed_seconds,
        bytes_sent=one.bytes_sent,
        peak_memory_bytes=one.peak_memory_bytes,
        cpu_share=one.cpu_share,
        flags=one.flags,
    )


def _doubts(found: ShownSummary) -> list[str]:
    """Return warnings if other programs kept this machine busy, now or while the model was profiled."""
    lines, share = [], found.other_cpu_share
    if share is not None and share > BUSY_SHARE:
        told = f"Other programs used {share:.0%} of this machine's processors meanwhile"
        lines.append(f"{told}: the figures are of a busy machine.")
    if found.profile is not None and found.profile.in_words:
        lines.append(_sentence(found.profile.in_words))
    return lines


def _ratios(found: ShownSummary) -> list[str]:
    ratios = (one.speedup_over_stock_ddp for one in found.contests)
    lines = [f"{ratio.in_words}." for ratio in ratios if ratio is not None]
    lines += [f"{name}: {one.in_words}." for name, one in found.fidelity.items()]
    return lines + [f"{name} was left out: {reason}" for name, reason in found.left_out.items()]


def _winner(found: ShownSummary) -> list[str]:
    winner = found.winner
    if not winner.beats_stock_ddp:
        return _keep(found)
    speedup = winner.speedup_over_stock_ddp
    assert speedup is not None, "the winner was compared with stock DDP"
    figures = f"{speedup.value:.2f} times as fast as stock DDP ({speedup.low:.2f} to {speedup.high:.2f})"
    if winner.headroom is None:
        left = "not known: the bound is one of exact strategies, and the winner is not exact"
    else:
        left = f"{speedup.value:.2f} times stock DDP, {winner.headroom.in_words}"
    lines = [
        f"The winner is {winner.name}: {figures}.",
        f"  what it does: {winner.in_words}",
        *_who_computes(winner.stages),
        f"  how it runs:  {winner.schedule}",
        f"  stock DDP:    {_time(found, found.contests[0].name)}",
        f"  the winner:   {_time(found, winner.name)}",
        f"  what is left: {left}",
    ]
    if found.stages is not None and found.stages.searched and found.stages.in_words:
        lines.append(f"  the bounds:   {found.stages.in_words}")
    lines += _of_some_models(found, width=13)
    if winner.training:
        lines.append(f"  training:     {winner.training}")
    return lines + [f"  {ratio.in_words}" for ratio in winner.against]


def _undivided(found: ShownSummary) -> list[str]:
    """Return why strategies with stages were not tried; nothing if they were."""
    stages = found.stages
    is_told = stages is not None and not stages.searched and stages.in_words
    return [_sentence(str(stages.in_words))] if is_told and stages is not None else []


def _who_computes(stages: Sequence[str]) -> list[str]:
    """Return which ranks compute which layers; of very many stages only the first."""
    more = [f"                and {len(stages) - MOST_STAGES} more stages"] if len(stages) > MOST_STAGES else []
    return [f"  who computes: {one}" for one in stages[:MOST_STAGES]] + more


def _keep(found: ShownSummary) -> list[str]:
    if len(found.contests) == 1:
        first = "Nothing was there to compare with stock DDP: keep it."
    else:
        first = "Nothing tried is faster than stock DDP for certain: keep it."
    prospect = [_sentence(found.prospect.in_words)] if found.prospect.in_words else []
    kept = f"  stock DDP: {_time(found, found.contests[0].name)}"
    return [first, *_perhaps_faster(found), *prospect, kept, *_of_some_models(found)]


def _perhaps_faster(found: ShownSummary) -> list[str]:
    """Return why a contestant whose own interval is above 1 is not the winner."""
    ratios = {one.name: one.speedup_over_stock_ddp for one in found.contests}
    above = [name for name, ratio in ratios.items() if ratio is not None and ratio.low > 1]
    if not above:
        return []
    count = len(found.contests) - 1
    compared = "1 comparison" if count == 1 else f"{count} comparisons at once"
    return [f"{above[0]} would be faster by its own interval; in {compared}, so small a gain may be chance."]


def _of_some_models(found: ShownSummary, *, width: int = 0) -> list[str]:
    """Return what is known of models whose graph changes, and of tasks with a dataset."""
    told = {"its graphs:": found.graphs, "its input:": found.loader}
    return [f"  {head:{width}} {one.in_words}" for head, one in told.items() if one is not None and one.in_words]


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _time(found: ShownSummary, name: str) -> str:
    """Return the parts of a contestant's step time."""
    contest = next(one for one in found.contests if one.name == name)
    return contest.time.in_words or f"{contest.seconds.value * 1e3:.4g} ms a step"


def _use(found: ShownSummary) -> list[str]:
    lines = [f"  {line}" for line in found.winner.use]
    return ["How to use it:", *lines] if found.winner.beats_stock_ddp else []
