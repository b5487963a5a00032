"""Explains how to use the winner: its bundle, its requirements, and its loading in a training script."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from autosync.errors import DoesNotApplyError
from autosync.search.candidates import default_as_strategy
from autosync.search.guarantee import ProofResult
from autosync.search.trial_runner import TrialRunner
from autosync.strategy.bundle import Bundle, save_bundle
from autosync.strategy.emit.ddp import WEIGHED, settings_for, why_not_ddp
from autosync.strategy.emit.script import call, emit_settings
from autosync.strategy.emit.settings import DdpSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class WinnerUsage:
    """How to train with the winner.

    `lines` are instructions for users. With `settings`, stock DDP does the same; None if it cannot, and then `refusal`
    says why. `script` is Python source that the lines mention, if these settings do not fit on a line.
    """

    lines: tuple[str, ...]
    settings: DdpSettings | None
    refusal: str = ""
    script: str | None = None


def bundle_of(trials: TrialRunner, winner: ProofResult) -> Bundle:
    """Return the winner's bundle. If stock DDP wins, the bundle has its buckets as a strategy."""
    bundle = trials.bundle(winner.candidate) or trials.bundle(default_as_strategy(trials.model, trials.cluster))
    assert bundle is not None, "every strategy has a bundle"
    return bundle


def write_bundle(bundle: Bundle, best: Path, output: Path | None) -> Path:
    """Write the bundle into its study and to `output` if given; return the path to tell the user."""
    save_bundle(best, bundle)
    if output is not None:
        save_bundle(output, bundle)
    return output or best


def usage(winner: ProofResult, bundle: Bundle, path: Path, *, script: Path) -> WinnerUsage:
    """Return how to train with the winner, whose bundle is at `path`.

    Stock DDP's settings may be written to `script`.
    """
    settings = winner.contestant.settings
    if settings is not None:
        found = _with_stock_ddp(settings, bundle, script)
        if not bundle.model.weighs:
            return found
        more = f"but {WEIGHED}; to weigh them, train with {path} (docs/shares.md)"
        return replace(found, lines=(*found.lines, more))
    try:
        settings, refusal = settings_for(bundle.strategy, bundle.model, bundle.cluster), ""
    except DoesNotApplyError:
        settings, refusal = None, why_not_ddp(bundle.strategy, bundle.model, bundle.cluster)[0]
    if bundle.strategy.stages:
        return WinnerUsage(lines=_with_trainer(path), settings=None, refusal=refusal)
    serves = any(node.role == "server" for node in bundle.cluster.nodes)
    lines = [
        "in the training script, after init_process_group and in place of DistributedDataParallel:",
        "    import autosync",
        "    model, optimizer = autosync.parallelize(model, optimizer)",
        *_with_loader(bundle),
        f"started by: autosync launch {path} -- train.py",
        f"or as before: AUTOSYNC_BUNDLE={path} torchrun … train.py"
        + (" (and `autosync serve` on nodes that only serve)" if serves else ""),
    ]
    if settings is not None:
        lines.append(f"or without autosync, by stock DDP: autosync emit {path} --to ddp -o tuned_ddp.py")
    else:
        lines.append(f"stock DDP cannot do the same: {refusal}")
    return WinnerUsage(lines=tuple(lines), settings=settings, refusal=refusal)


def _with_loader(bundle: Bundle) -> list[str]:
    """Return how to read with the input settings of a bundle, if it has some."""
    if bundle.strategy.input is None:
        return []
    return [
        "and in place of the DataLoader, for the bundle's input settings:",
        f"    loader = autosync.loader(dataset, batch_size={bundle.model.batch_size})",
    ]


def _with_trainer(path: Path) -> tuple[str, ...]:
    """Return how to train with stages: a pipeline cannot live behind a script's own passes."""
    return (
        "in the training script, after init_process_group and in place of the model, its passes and its optimizer:",
        "    import autosync",
        "    with autosync.trainer(task()) as trainer:",
        "        for batch in batches:  # the global batch of all ranks, on every rank",
        "            loss = trainer.step(batch)",
        f"started by: autosync launch {path} -- train.py",
        f"or as before: AUTOSYNC_BUNDLE={path} torchrun … train.py",
        "stock DDP cannot do the same: it has no stages (docs/stages.md)",
    )


def _with_stock_ddp(settings: DdpSettings, bundle: Bundle, script: Path) -> WinnerUsage:
    if settings.is_stock:
        lines: tuple[str, ...] = ("leave the training script as it is: DistributedDataParallel(model)",)
        return WinnerUsage(lines=lines, settings=settings)
    if settings.hook is None and not settings.frozen and len(call(settings)) <= 100:
        lines = ("in the training script:", f"    model = {call(settings)}")
        return WinnerUsage(lines=lines, settings=settings)
    lines = (
        f"copy {script} beside the training script, and in place of DistributedDataParallel(model):",
        f"    from {script.stem} import wrap",
        "    model = wrap(model)",
    )
    # `autosync emit` would not do: the bundle has the buckets but not the flags that were proved with them.
    emitted = emit_settings(settings, bundle.strategy, bundle.model, bundle.cluster)
    return WinnerUsage(lines=lines, settings=settings, script=emitted.python)
