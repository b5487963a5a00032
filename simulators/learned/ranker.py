"""`learned`: boosted trees over the features of model, cluster, strategy and plan, which correct the other simulators.

They predict the error of the best other simulator. Two ensembles are applied in succession: a *prior* that was trained
on other models and clusters, if there is one, and another that is trained on the trials of the study itself, again
whenever it has more. Trees see thresholds, and they are restrained if trials are few. Their remaining error is taken to
be smooth, so each strategy is also corrected by the remaining errors of similar strategies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autosync.errors import InputError
from autosync.simulators.evaluation import Accuracy, Measured, accuracy_of, mean_accuracy
from autosync.simulators.features.reader import GROUPS, FeatureGroup, Read, StrategyReader, feature_names
from autosync.simulators.learned import files
from autosync.simulators.learned.boosted import MIN_BLOCKS, UNTAUGHT, Boosted, Boosting, boost
from autosync.simulators.learned.losses import Positions, Targets
from autosync.simulators.learned.rehearsal import check_rehearsal, rehearsed
from autosync.simulators.learned.smooth import Smoothed
from autosync.simulators.learned.trees import dump_booster, load_booster
from autosync.simulators.shared.arrays import Floats
from autosync.strategy.representation import Strategy

PRIOR = Boosting(seeds=2, rounds=120, depth=4, rate=0.08, smoothing=5.0)
TARGET = Boosting(seeds=2, rounds=50, depth=3, rate=0.1, smoothing=2.0)

_FEW = 25
"""The number of trials below which trees are flatter and their remaining error is not smoothed; after ten trials,
smoothing made the picks worse."""

_BELIEF = 10.0
"""The weight of the prior: its correction is scaled to fit the target's trials, as if this many further trials had
confirmed it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaughtRanker:
    """The other simulators, corrected by a prior and then by the trials of the target.

    The uncertainty comes from the trees and ignores the smoothing.
    """

    reader: StrategyReader
    groups: frozenset[FeatureGroup]
    prior: Boosted
    prior_share: float
    target: Boosted
    smoothed: Smoothed | None

    def predict(self, rows: Read) -> tuple[Floats, Floats]:
        """Return the log of the seconds of each row, and its uncertainty."""
        features = self.reader.features(rows, self.groups)
        before, unsure_before = self.prior.correct(features.values)
        after, unsure = self.target.correct(features.values)
        if not self.target.members:
            # With few trials or none, the target's ensemble does not know the uncertainty.
            unsure = np.maximum(unsure, unsure_before)
        if self.smoothed is not None:
            after = after + self.smoothed.correct(features.values)
        return np.log(features.seconds) + self.prior_share * before + after, unsure


class RankerStudent:
    """Learns to correct the other simulators. `prior` was learned from other models and clusters."""

    name = "learned"

    def __init__(
        self,
        reader: StrategyReader,
        *,
        prior: Boosted = UNTAUGHT,
        groups: frozenset[FeatureGroup] = GROUPS,
        how: Boosting = TARGET,
    ) -> None:
        self._reader = reader
        self._prior = prior
        self._groups = groups
        self._how = how

    def read(self, strategies: Sequence[Strategy]) -> Read:
        """Return strategies as rows, in their order."""
        return self._reader.read(strategies)

    def complexity(self, rows: Read) -> Floats:
        """Return the complexity of each strategy."""
        return rows.complexity

    def taught(self, rows: Read, targets: Targets) -> TaughtRanker:
        """Return the ranker after these trials."""
        target, share, smoothed = UNTAUGHT, 1.0, None
        count = len(targets.log_seconds)
        if count:
            features = self._reader.features(rows, self._groups)
            correction, _ = self._prior.correct(features.values)
            begin = np.log(features.seconds)
            share = _believed(correction, targets.log_seconds - begin)
            begin = begin + share * correction
            are_few = count < _FEW
            how = replace(self._how, depth=2) if are_few else self._how
            target = boost(features.values, begin, targets, _alike(features.values), how)
            if not are_few:
                found, _ = target.correct(features.values)
                smoothed = Smoothed.of(features.values, targets.log_seconds - begin - found)
        return TaughtRanker(
            reader=self._reader,
            groups=self._groups,
            prior=self._prior,
            prior_share=share,
            target=target,
            smoothed=smoothed,
        )


def _alike(values: Floats) -> Positions:
    """Return the block of each trial.

    Trials with equal features, mostly of one strategy, share a block, which is hidden as a whole.
    """
    _, first, number = np.unique(values, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    return np.asarray(order[number.ravel()], dtype=np.intp)


def _believed(correction: Floats, errors: Floats) -> float:
    """Return the factor of the prior's correction that these trials support."""
    found, wanted = correction - correction.mean(), errors - errors.mean()
    variance = float(np.mean(found**2))
    if variance <= 1e-12:
        return 1.0
    belief = _BELIEF * variance
    return float(np.clip((np.sum(found * wanted) + belief) / (np.sum(found**2) + belief), 0.0, 1.5))


class Lesson:
    """Groups of measured strategies, of many models and clusters, as one table to train a prior on."""

    def __init__(self, groups: frozenset[FeatureGroup] = GROUPS) -> None:
        self._groups = groups
        self._values: list[Floats] = []
        self._begin: list[Floats] = []
        self._targets: list[Targets] = []
        self._models: list[str] = []

    def add(self, reader: StrategyReader, rows: Read, targets: Targets, *, model: str) -> None:
        """Add a group. `model` identifies the groups of the same model."""
        features = reader.features(rows, self._groups)
        self._append(features.values, np.log(features.seconds), targets, model)

    def prior(self, how: Boosting = PRIOR) -> Boosted:
        """Return the prior that learns from all groups. Whole models are hidden from its members."""
        if not self._models:
            return UNTAUGHT
        targets = Targets(*(np.concatenate(columns) for columns in zip(*self._targets, strict=True)))
        return boost(np.concatenate(self._values), np.concatenate(self._begin), targets, self._blocks(), how)

    def held_out(self, how: Boosting = PRIOR) -> Mapping[str, float]:
        """Return the mean accuracy on each model of priors that were trained on all other models."""
        found = []
        for model in dict.fromkeys(self._models):
            prior = self._part([number for number, one in enumerate(self._models) if one != model]).prior(how)
            found += self._part([number for number, one in enumerate(self._models) if one == model]).accuracies(prior)
        mean = mean_accuracy(found)
        names = ("pair_ranking", "kendall_tau", "median_error", "p90_error", "top_regret", "top5_regret")
        return {name: round(value, 4) for name in names if (value := getattr(mean, name)) is not None}

    def accuracies(self, prior: Boosted) -> list[Accuracy]:
        """Return the accuracy of a prior in each group."""
        found = []
        for values, begin, targets in zip(self._values, self._begin, self._targets, strict=True):
            correction, _ = prior.correct(values)
            measured = Measured(*(np.exp(one) for one in (targets.log_seconds, targets.log_low, targets.log_high)))
            found.append(accuracy_of(measured, np.exp(begin + correction)))
        return found

    def _part(self, chosen: Sequence[int]) -> Lesson:
        part = Lesson(self._groups)
        for number in chosen:
            part._append(self._values[number], self._begin[number], self._targets[number], self._models[number])
        return part

    def _append(self, values: Floats, begin: Floats, targets: Targets, model: str) -> None:
        self._values.append(values)
        self._begin.append(begin)
        self._targets.append(targets._replace(group=np.full(len(begin), len(self._models), dtype=np.intp)))
        self._models.append(model)

    def _blocks(self) -> Positions:
        """Return the blocks of rows: models if there are enough of them, else groups, else single rows."""
        numbers = {model: number for number, model in enumerate(dict.fromkeys(self._models))}
        of_group = [numbers[model] if len(numbers) >= MIN_BLOCKS else one for one, model in enumerate(self._models)]
        lengths = [len(begin) for begin in self._begin]
        if len(set(of_group)) < MIN_BLOCKS:
            return np.arange(sum(lengths), dtype=np.intp)
        return np.repeat(np.array(of_group, dtype=np.intp), lengths)


def save_ranker(
    folder: Path | str, ranker: Boosted, *, trained_on: files.TrainedOn, accuracy: Mapping[str, float]
) -> None:
    """Write a prior, for other models and clusters."""
    contents = {f"member-{number:02}.json": dump_booster(one).encode() for number, one in enumerate(ranker.members)}
    manifest = files.manifest_of(
        "learned",
        features=feature_names(),
        numbers={"share": [ranker.share], "offset": [ranker.offset], "noise": [ranker.noise]},
        trained_on=trained_on,
        accuracy=accuracy,
        rehearsal=rehearsed(),
        contents=contents,
    )
    files.save(folder, manifest, contents)


def load_ranker(folder: Path | str) -> Boosted:
    """Return a saved prior; raise if it is damaged, of another version, or for other features."""
    manifest = files.load_manifest(folder, "learned")
    try:
        share, offset, noise = _numbers(manifest)
    except InputError as error:
        raise files.refused(Path(folder) / files.MANIFEST_FILE, error) from error
    members = tuple([_load_member(Path(folder), manifest, name) for name in sorted(manifest.files)])
    return Boosted(members=members, share=share, offset=offset, noise=noise)


def _numbers(manifest: files.Manifest) -> tuple[float, float, float]:
    if manifest.features != feature_names():
        raise InputError("it was trained on other features", rule="the features of this version, in their order")
    check_rehearsal(manifest.rehearsal)
    (share,), (offset,), (noise,) = (manifest.number(name) for name in ("share", "offset", "noise"))
    if not (0 <= share <= 1 and noise >= 0):
        raise InputError(f"share {share}, noise {noise}", rule="a share of 0 to 1, noise of 0 or more")
    return share, offset, noise


def _load_member(folder: Path, manifest: files.Manifest, name: str) -> object:
    fields = files.parse_json(folder / name, files.read_file(folder, manifest, name))
    try:
        return load_booster(fields, num_features=len(manifest.features))
    except InputError as error:
        raise files.refused(folder / name, error) from error
