"""The result of a tuning run for users: the verdict, the parts of a step's time, the winner, and how to use it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autosync.cli.compare import table
from autosync.cli.profile_warnings import profile_warning_lines
from autosync.specs.background_load import BUSY_SHARE

if TYPE_CHECKING:
    from autosync.search.tuned import Tuned


def describe(tuned: Tuned, output: Path | None) -> str:
    """Return the verdict, in which each paragraph answers a question: the gain, its cause, the winner, and its use."""
    blocks = [[_tried(tuned)], [_contests(tuned)], _busy(tuned), _ratios(tuned), _winner(tuned), _use(tuned)]
    text = "\n\n".join("\n".join(block) for block in blocks if block)
    bundle = output or tuned.folder / "best.yaml"
    what = "" if tuned.verdict.beats_default else " (stock DDP's buckets as a strategy)"
    return f"{text}\n\nbundle: {bundle}{what}\nstudy:  {tuned.folder}"


def _tried(tuned: Tuned) -> str:
    failed = sum(record.failure is not None for record in tuned.records)
    count = len(tuned.records)
    text = "1 strategy tried" if count == 1 else f"{count} strategies tried"
    origins = tuned.summary["tried"]
    assert isinstance(origins, dict), "the summary counts origins"
    if count > 1:
        text += f" ({', '.join(_of_origin(origin, number) for origin, number in origins.items())})"
    if failed:
        text += f", {failed} of them failed (the study says why)"
    if outages := tuned.summary["num_outages"]:
        text += f"; {outages} more trial{'s' if outages != 1 else ''} ended by no fault of a strategy, and began again"
    if len(tuned.verdict.results) == 1:
        return f"{text}. Stock DDP alone:"
    return f"{text}. Stock DDP and the fastest others, measured again in turn:"


def _of_origin(origin: str, number: int) -> str:
    if origin == "baseline":
        return "stock DDP"
    return f"{number} {origin}" + ("s" if origin == "preset" and number > 1 else "")


def _contests(tuned: Tuned) -> str:
    results = tuned.verdict.results
    return table(
        {result.name: result.measurement for result in results},
        {result.name: result.ratio.speedup for result in results if result.ratio is not None},
    )


def _busy(tuned: Tuned) -> list[str]:
    """Return warnings if other programs kept this machine busy, now or while the model was profiled."""
    share, lines = tuned.verdict.other_cpu_share, profile_warning_lines(tuned.model)
    if share is not None and share > BUSY_SHARE:
        told = f"Other programs used {share:.0%} of this machine's processors meanwhile"
        lines = [f"{told}: the figures are of a busy machine.", *lines]
    return lines


def _ratios(tuned: Tuned) -> list[str]:
    verdict = tuned.verdict
    lines = [f"{result.ratio}." for result in verdict.results if result.ratio is not None]
    fidelity = tuned.summary["fidelity"]
    assert isinstance(fidelity, dict), "the summary has a fidelity by name"
    lines += [f"{name}: {one['in_words']}." for name, one in fidelity.items()]
    return lines + [f"{name} was left out: {one.kind}: {one.message}" for name, one in verdict.left_out.items()]


def _winner(tuned: Tuned) -> list[str]:
    verdict, fields = tuned.verdict, tuned.summary["winner"]
    assert isinstance(fields, dict), "the summary's winner has fields"
    if not verdict.beats_default:
        return _keep(tuned)
    winner = verdict.winner
    assert winner.ratio is not None, "who wins was compared with stock DDP"
    speedup = winner.ratio.speedup
    figures = f"{speedup.value:.2f} times as fast as stock DDP ({speedup.low:.2f} to {speedup.high:.2f})"
    lines = [
        f"The winner is {winner.name}: {figures}.",
        f"  what it does: {fields['in_words']}",
        f"  how it runs:  {fields['schedule']}",
        f"  stock DDP:    {_time(tuned, verdict.default.name)}",
        f"  the winner:   {_time(tuned, winner.name)}",
        f"  what is left: {_left(tuned)}",
    ]
    if fields["training"]:
        lines.append(f"  training:     {fields['training']}")
    return lines + [f"  {ratio}" for ratio in verdict.against]


def _left(tuned: Tuned) -> str:
    """Return the gain that remains after the winner's speedup."""
    winner, fields = tuned.verdict.winner, tuned.summary["winner"]
    assert isinstance(fields, dict), "the summary's winner has fields"
    assert winner.ratio is not None, "who wins was compared with stock DDP"
    if fields["headroom"] is None:
        return "not known: the bound is one of exact strategies, and the winner is not exact"
    return f"{winner.ratio.speedup.value:.2f} times stock DDP, {fields['headroom']['in_words']}"


def _keep(tuned: Tuned) -> list[str]:
    if len(tuned.verdict.results) == 1:
        first = "Nothing was there to compare with stock DDP: keep it."
    else:
        first = "Nothing tried is faster than stock DDP for certain: keep it."
    prospect = tuned.summary["prospect"]
    assert isinstance(prospect, dict), "the summary's prospect has fields"
    words = str(prospect["in_words"])
    return [first, f"{words[0].upper()}{words[1:]}.", f"  stock DDP: {_time(tuned, tuned.verdict.default.name)}"]


def _time(tuned: Tuned, name: str) -> str:
    """Return the parts of a contestant's step time."""
    from autosync.search.headroom import time_shares

    result = next(result for result in tuned.verdict.results if result.name == name)
    return str(time_shares(result.measurement, tuned.model, tuned.cluster, result.candidate.strategy))


def _use(tuned: Tuned) -> list[str]:
    fields = tuned.summary["winner"]
    assert isinstance(fields, dict), "the summary's winner has fields"
    return ["How to use it:", *[f"  {line}" for line in fields["use"]]] if tuned.verdict.beats_default else []
