"""Judges a cell: one script under one use of autosync, beside stock DDP."""

import json
import shutil
from dataclasses import dataclass, replace

from bundles import CLUSTER, STRATEGIES, write_bundles
from judging import allowances, distances, excess, mismatch, too_wide
from processes import Ended
from runs import AUTOSYNC, MORE_STOCK, RunFailed, Runs
from written import Written

from autosync.errors import AutosyncError

CELLS = (*STRATEGIES, "tune", "doctor")
KINDS = ("same", "refused", "unlisted", "wrong", "hang", "crash", "stock")
"""`unlisted` is a refusal that no table lists; `stock`: stock DDP itself does not run the script twice alike."""
GOOD = KINDS[:2]
TUNED_STEPS = 3000
"""The steps of a script that is tuned. It is ended with the verdict, after a few hundred."""
NUM_TRIALS = 2
_LONGEST = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A cell's verdict. `share` is the largest share of the allowed distance from stock DDP that was taken."""

    verdict: str
    words: str = ""
    share: float | None = None


def judge(runs: Runs, cell: str) -> Result:
    """Run a cell and judge it."""
    try:
        references = runs.references()
    except (RunFailed, OSError, ValueError) as error:
        return Result(verdict="stock", words=_told(error))
    if words := too_wide(allowances(*references), references[0]):
        return Result(verdict="stock", words=words)
    try:
        match cell:
            case "tune":
                return _tuned(runs)
            case "doctor":
                return _diagnosed(runs, references)
            case strategy:
                return _launched(runs, strategy, references)
    except RunFailed as failure:
        return _of_failure(runs, cell, failure)
    except FileNotFoundError as error:
        return Result(verdict="wrong", words=str(error))


def _launched(runs: Runs, strategy: str, references: list[Written]) -> Result:
    """Compare the run with stock DDP, and then what stock DDP makes of the run's checkpoint and of its own.

    Where rounding grows, as with numbers of 16 bits, how far it leads differs by 5 times from run to run. So a run that
    is too far from stock DDP is compared once more, with further runs of stock DDP.
    """
    try:
        first, *others = write_bundles(runs.folder, strategy, runs.models())
    except AutosyncError as error:
        return _refused(runs, strategy, str(error))
    also = [word for one in others for word in ("--also", one)]
    runs.run(strategy, (*AUTOSYNC, "launch", first, *also, "--"))
    found = runs.written(strategy)
    result = _compared(found, references[0], allowances(*references))
    if result.share is not None and result.share > 1:
        references = [*references, *runs.references(MORE_STOCK)]
        result = _compared(found, references[0], allowances(*references))
        result = replace(result, words=f"beside {len(references)} runs of stock DDP: {result.words or 'near enough'}")
    if result.verdict != "same":
        return result
    expected = runs.resumed("stock-25")
    try:
        resumed = runs.resumed(strategy)
    except RunFailed as failure:
        return Result(verdict="wrong", words=f"stock DDP does not resume its checkpoint: {_told(failure)}")
    after = _compared(resumed, expected, allowances(*references))
    if after.verdict == "same":
        return replace(result, share=max(result.share or 0.0, after.share or 0.0))
    return replace(after, words=f"after stock DDP has resumed its checkpoint: {after.words}")


def _tuned(runs: Runs) -> Result:
    """Compare the losses until the verdict with those of stock DDP, whose runs end at the same step."""
    how = ("--cluster", CLUSTER, "--stop", "--trials", str(NUM_TRIALS), "--json", "-o", "best.yaml")
    ended = runs.run("tune", (*AUTOSYNC, "tune", *how, "--"), steps=TUNED_STEPS)
    if words := _no_document(ended):
        return Result(verdict="wrong", words=words)
    found = runs.written("tune", has_ended=False)
    yardsticks = []
    for name, way in {"tune-stock": ("--bucket-mb", "25"), "tune-jitter": ("--jitter", "1")}.items():
        shutil.rmtree(runs.folder / name, ignore_errors=True)
        runs.stock(name, (*way, "--end-after", str(len(found.losses))), steps=TUNED_STEPS)
        yardsticks.append(_first(runs.written(name, has_ended=False), len(found.losses)))
    result = _compared(found, yardsticks[0], allowances(*yardsticks))
    return replace(result, words=result.words or f"{len(found.losses)} steps until the verdict")


def _diagnosed(runs: Runs, references: list[Written]) -> Result:
    """Compare the losses of the steps that were watched."""
    how = ("--cluster", CLUSTER, "--no-probe", "--timeout", "4min", "--json")
    ended = runs.run("doctor", (*AUTOSYNC, "doctor", *how, "--"))
    if words := _no_document(ended):
        return Result(verdict="wrong", words=words)
    found = runs.written("doctor", has_ended=False)
    yardsticks = [_first(one, len(found.losses)) for one in references]
    return _compared(found, yardsticks[0], allowances(*yardsticks))


def _first(written: Written, number: int) -> Written:
    return Written(losses=written.losses[:number], tensors={})


def _compared(found: Written, expected: Written, allowed: dict[str, float]) -> Result:
    if words := mismatch(found, expected):
        return Result(verdict="wrong", words=words)
    share, place = excess(distances(found, expected), allowed)
    if share <= 1:
        return Result(verdict="same", share=round(share, 4))
    words = f"{place}: {share:.3g} times as far from stock DDP as is allowed"
    return Result(verdict="wrong", words=words, share=round(share, 4))


def _no_document(ended: Ended) -> str:
    """Return in words that standard output is not one JSON document; empty if it is."""
    try:
        json.loads(ended.printed)
    except ValueError as error:
        return f"standard output is no JSON document: {error}"
    return ""


# Runs that have failed.


def _of_failure(runs: Runs, cell: str, failure: RunFailed) -> Result:
    """A refusal has words of autosync's; a crash is anything else that ends a run."""
    if failure.ended.code is None:
        return Result(verdict="hang", words=_told(failure))
    if "autosync.errors." in failure.ended.output or "\nerror: " in f"\n{failure.ended.output}":
        return _refused(runs, cell, failure.ended.output)
    return Result(verdict="crash", words=_told(failure))


def _refused(runs: Runs, cell: str, output: str) -> Result:
    listed = runs.script.refused.get(cell, "")
    if listed and listed in output:
        return Result(verdict="refused", words=listed)
    return Result(verdict="unlisted", words=_last_lines(output))


def _told(error: Exception) -> str:
    if isinstance(error, RunFailed):
        return f"{error}: {_last_lines(error.ended.output)}"
    return f"{type(error).__name__}: {error}"


def _last_lines(output: str) -> str:
    """Return the lines that name errors, or else the last ones."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "error:" in line]
    return " | ".join(dict.fromkeys((errors or lines)[-4:]))[-_LONGEST:]
