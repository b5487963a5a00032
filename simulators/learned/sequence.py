"""`sequence`: a recurrent network over a model's variables, like that of the original AutoSync, for comparison.

It reads the variables in both directions, each with the strategy's choices for it. It is trained on pairs to predict
which strategy is faster, without the predictions of other simulators.
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
    """A trained network. Without weights it predicts the bound, scaled by the exponential of `offset`."""

    weights: Weights | None
    offset: float

    def predict(self, rows: SequenceRows) -> tuple[Floats, Floats]:
        """Return the log of the seconds of each row. It does not know its uncertainty, so that is 0."""
        count = len(rows.bound)
        scores = np.zeros(count)
        if self.weights is not None and count:
            from autosync.simulators.learned.network import scores_of

            scores = scores_of(self.weights, rows.values)
        return np.log(rows.bound) + self.offset + scores, np.zeros(count)


UNTAUGHT = Sequencer(weights=None, offset=0.0)


class SequenceStudent:
    """Learns the weights of a network, starting from those of the prior."""

    name = "sequence"

    def __init__(self, model: ModelSpec, cluster: ClusterSpec, *, prior: Sequencer = UNTAUGHT) -> None:
        self._reader = SequenceReader(model, cluster)
        self._prior = prior

    def read(self, strategies: Sequence[Strategy]) -> SequenceRows:
        """Return strategies as rows, in their order."""
        return self._reader.read(strategies)

    def complexity(self, rows: SequenceRows) -> Floats:
        """Return the complexity of each strategy."""
        return rows.complexity

    def taught(self, rows: SequenceRows, targets: Targets) -> Sequencer:
        """Return the network after these trials."""
        if len(targets.log_seconds) < _FEWEST:
            return _shifted(self._prior, rows, targets)
        return train([TrialGroup(rows=rows, targets=targets, model="", cluster="")], prior=self._prior)


def train(
    groups: Sequence[TrialGroup[SequenceRows]], *, prior: Sequencer = UNTAUGHT, passes: int | None = None
) -> Sequencer:
    """Return a network that orders each group. With a prior, training starts from its weights."""
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
    """Return the network with another offset, so that it is right on average over these trials."""
    if len(targets.log_seconds) == 0:
        return sequencer
    predicted, _ = sequencer.predict(rows)
    shift = float(np.median(targets.log_seconds - predicted))
    return Sequencer(weights=sequencer.weights, offset=sequencer.offset + shift)


def save_sequencer(
    folder: Path | str, sequencer: Sequencer, *, trained_on: files.TrainedOn, accuracy: Mapping[str, float]
) -> None:
    """Write a prior, with its weights as safetensors."""
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
    """Return a saved prior."""
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
