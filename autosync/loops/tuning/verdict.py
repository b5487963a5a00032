"""The outcome of a loop's tuning in words."""

from __future__ import annotations

import math

from autosync import units
from autosync.loops.tuning.candidates import ONE_RANK, words_of_choice
from autosync.loops.tuning.contest import TriedSchedule
from autosync.loops.tuning.tune import TunedLoop
from autosync.strategy.wording import format_table

_NUM_OTHERS = 6


def describe_tuning(tuned: TunedLoop) -> str:
    """Return the goal, a table of the schedules, and the winner with its proof."""
    outcome, winner = tuned.outcome, tuned.winner
    lines = [
        f"{tuned.loop}: {tuned.num_records:,} records on {tuned.num_ranks} ranks of {tuned.cluster}",
        f"goal: loss {outcome.goal:.6g} (it begins at {outcome.initial_loss:.6g})",
        "",
    ]
    finalists = [one for one in outcome.contestants if one.is_finalist]
    header = ("schedule", "predicted", "measured", "epochs", "an epoch")
    rows = [_row(one) for one in finalists]
    lines += ["run to the goal:", format_table(rows, header=header, right=header[1:]), ""]
    lines += [f"  {words_of_choice(one.choice)}: {one.why_not}" for one in finalists if one.why_not]
    others = [one for one in outcome.contestants if not one.is_finalist]
    if others:
        shown = [
            (words_of_choice(one.choice), _time(one.predicted_seconds), one.why_not) for one in others[:_NUM_OTHERS]
        ]
        title = f"predicted only ({len(shown)} of {len(others)}):" if len(shown) < len(others) else "predicted only:"
        lines += [
            title,
            format_table(shown, header=("schedule", "time to the goal", ""), right=("time to the goal",)),
            "",
        ]
    return "\n".join([*lines, *_verdict(tuned, winner)])


def _row(one: TriedSchedule) -> tuple[str, ...]:
    return (
        words_of_choice(one.choice),
        _time(one.predicted_seconds),
        ", ".join(units.format_time(seconds) for seconds in one.seconds) or "not reached",
        str(one.num_epochs) if one.seconds else "",
        _time(one.epoch_seconds),
    )


def _time(seconds: float) -> str:
    return units.format_time(seconds) if math.isfinite(seconds) else "none"


def _verdict(tuned: TunedLoop, winner: TriedSchedule) -> list[str]:
    outcome = tuned.outcome
    lines = [f"fastest: {words_of_choice(winner.choice)}"]
    reached = [one for one in outcome.contestants[1:] if one.seconds]
    if not reached:
        lines.append("no other schedule reached the goal")
    elif outcome.is_proven:
        ratio = reached[0].mean_seconds / winner.mean_seconds
        lines.append(f"each of its runs was faster than all others; the next one takes {ratio:.2f} times as long")
    else:
        lines.append("not proven: its runs and those of the next one overlap")
    serial = next((one for one in outcome.contestants if one.choice == ONE_RANK), None)
    if serial is not None and winner is not serial:
        seconds, kind = (serial.mean_seconds, "measured") if serial.seconds else (serial.predicted_seconds, "predicted")
        lines.append(f"{seconds / winner.mean_seconds:.2f} times as fast as one rank ({kind})")
    if not winner.is_exact:
        lines.append("data-parallel training changes the result: its tables are not those of a serial run")
    return lines
