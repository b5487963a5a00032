"""`sequence`: a recurrent network over a model's variables, as the original AutoSync had it; to be compared with.

It reads the variables one after the other, each with what the strategy does with it, in both directions, and is trained
on pairs to call the faster one the faster. It is told nothing of what other simulators predict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autosync.errors import InputError
from autosync.simulators.features.context import CONTEXT
from autosync.simulators.learned import files
from autosync.simulators.learned.losses import Targets
from autosync.simulators.learned.trials import TrialGroup
from autosync.simulators.learned.variables import VARIABLE_NAMES, SequenceReader, SequenceRows
from autosync.simulators.shared.arrays import Floats
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy

if TYPE_CHECKING:
    from autosync.simulators.learned.network import Weights


FEATURES = (*VARIABLE_NAMES, *CONTEXT)
WEIGHTS_FILE = "weights.safetensors"
_FEWEST = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sequencer:
    """A trained network; None: everything takes as long as the bound says, times `offset`."""

    weights: Weights | None
    offset: float

    def predict(self, rows: SequenceRows) -> tuple[Floats, Floats]:
        """The log of the seconds of each row; it cannot tell how unsure it is."""
        count = len(rows.bound)
        scores = np.zeros(count)
        if self.weights is not None and count:
            from autosync.simulators.learned.network import scores_of

            scores = scores_of(self.weights, rows.values)
        return np.log(rows.bound) + self.offset + scores, np.zeros(count)


UNTAUGHT = Sequencer(weights=None, offset=0.0)


class SequenceStudent:
    """Learns the weights of a network, those of the prior to begin with."""

    name = "sequence"

    def __init__(self, model: ModelSpec, cluster: ClusterSpec, *, prior: Sequencer = UNTAUGHT) -> None:
        self._reader = SequenceReader(model, cluster)
        self._prior = prior

    def read(self, strategies: Sequence[Strategy]) -> SequenceRows:
        """Strategies as rows, in their order."""
        return self._reader.read(strategies)

    def complexity(self, rows: SequenceRows) -> Floats:
        """How complicated each strategy is."""
        return rows.complexity

    def taught(self, rows: SequenceRows, targets: Targets) -> Sequencer:
        """The network after these trials."""
        if len(targets.log_seconds) < _FEWEST:
            return _shifted(self._prior, rows, targets)
        return train([TrialGroup(rows=rows, targets=targets, model="", cluster="")], prior=self._prior)


def train(
    groups: Sequence[TrialGroup[SequenceRows]], *, prior: Sequencer = UNTAUGHT, passes: int | None = None
) -> Sequencer:
    """A network that orders each group; with a prior it begins where that ended."""
    from autosync.simulators.learned.network import trained

    if not groups:
        return prior
    levels = [group.targets.log_seconds - np.log(group.rows.bound) for group in groups]
    offset = float(np.median(np.concatenate(levels)))
    tables = [
        (group.rows.values, level - offset, group.targets.log_low, group.targets.log_high)
        for group, level in zip(groups, levels, strict=True)
    ]
    weights = trained(tables, begin=prior.weights, passes=passes)
    found = Sequencer(weights=weights, offset=offset)
    return _shifted(found, groups[0].rows, groups[0].targets) if len(groups) == 1 else found


def _shifted(sequencer: Sequencer, rows: SequenceRows, targets: Targets) -> Sequencer:
    """The same, right on average over these trials."""
    if len(targets.log_seconds) == 0:
        return sequencer
    predicted, _ = sequencer.predict(rows)
    shift = float(np.median(targets.log_seconds - predicted))
    return Sequencer(weights=sequencer.weights, offset=sequencer.offset + shift)


def save_sequencer(
    folder: Path | str, sequencer: Sequencer, *, trained_on: files.TrainedOn, accuracy: Mapping[str, float]
) -> None:
    """Write a prior: its weights as safetensors."""
    from autosync.simulators.learned.network import weights_to_bytes

    contents = {WEIGHTS_FILE: weights_to_bytes(sequencer.weights)} if sequencer.weights is not None else {}
    manifest = files.manifest_of(
        "sequence",
        features=FEATURES,
        numbers={"offset": [sequencer.offset]},
        trained_on=trained_on,
        accuracy=accuracy,
        rehearsal=(),
        contents=contents,
    )
    files.save(folder, manifest, contents)


def load_sequencer(folder: Path | str) -> Sequencer:
    """A prior that was saved."""
    from autosync.simulators.learned.network import weights_from_bytes

    manifest = files.load_manifest(folder, "sequence")
    try:
        (offset,) = _offset(manifest)
    except InputError as error:
        raise files.refused(Path(folder) / files.MANIFEST_FILE, error) from error
    if not manifest.files:
        return Sequencer(weights=None, offset=offset)
    content = files.read_file(folder, manifest, WEIGHTS_FILE)
    try:
        return Sequencer(weights=weights_from_bytes(content), offset=offset)
    except InputError as error:
        raise files.refused(Path(folder) / WEIGHTS_FILE, error) from error


def _offset(manifest: files.Manifest) -> tuple[float, ...]:
    if manifest.features != FEATURES:
        raise InputError("it was trained on other features", rule="the features of this version, in their order")
    if set(manifest.files) - {WEIGHTS_FILE}:
        raise InputError(f"the files {sorted(manifest.files)[:5]}", rule=f"at most one, {WEIGHTS_FILE}")
    return manifest.number("offset")
