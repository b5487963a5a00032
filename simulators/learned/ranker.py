"""`learned`: boosted trees over the features of model, cluster, strategy and plan, on top of the other simulators.

What is predicted is by how much the best of the other simulators is off. Two ensembles have their say, one on top of
the other: a *prior* that was trained on other models and clusters, if there is one, and one that is trained on the
trials of the study itself, again whenever there are more of them. Trees see thresholds, and are held back where trials
are few: what they leave is taken for smooth, so each strategy is corrected by what was left of those like it.
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
"""With fewer trials trees are flatter, and what they leave is left: after ten trials smoothing it made picks worse."""

_BELIEF = 10.0
"""The prior's correction is scaled to fit the target's trials as if that many trials had said that it is right."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaughtRanker:
    """The other simulators, corrected by a prior and then by what is left for the target.

    How unsure it is comes from the trees, as if nothing were smoothed.
    """

    reader: StrategyReader
    groups: frozenset[FeatureGroup]
    prior: Boosted
    prior_share: float
    target: Boosted
    smoothed: Smoothed | None

    def predict(self, rows: Read) -> tuple[Floats, Floats]:
        """The log of the seconds of each row, and how unsure it is."""
        features = self.reader.features(rows, self.groups)
        before, unsure_before = self.prior.correct(features.values)
        after, unsure = self.target.correct(features.values)
        if not self.target.members:
            # Few trials, or none, do not say how unsure the rest is.
            unsure = np.maximum(unsure, unsure_before)
        if self.smoothed is not None:
            after = after + self.smoothed.correct(features.values)
        return np.log(features.seconds) + self.prior_share * before + after, unsure


class RankerStudent:
    """Learns how far off the other simulators are. `prior` is what others learned of other models and clusters."""

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
        """Strategies as rows, in their order."""
        return self._reader.read(strategies)

    def complexity(self, rows: Read) -> Floats:
        """How complicated each strategy is."""
        return rows.complexity

    def taught(self, rows: Read, targets: Targets) -> TaughtRanker:
        """The ranker after these trials."""
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
    """Trials with equal features, mostly of one strategy, are one block: a block is held out as a whole."""
    _, first, number = np.unique(values, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    return np.asarray(order[number.ravel()], dtype=np.intp)


def _believed(correction: Floats, errors: Floats) -> float:
    """How much of the prior's correction these trials bear out."""
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
        """One group more; `model` says which groups are of the same."""
        features = reader.features(rows, self._groups)
        self._append(features.values, np.log(features.seconds), targets, model)

    def prior(self, how: Boosting = PRIOR) -> Boosted:
        """What is learned from all of them; members are held against models that they did not see."""
        if not self._models:
            return UNTAUGHT
        targets = Targets(*(np.concatenate(columns) for columns in zip(*self._targets, strict=True)))
        return boost(np.concatenate(self._values), np.concatenate(self._begin), targets, self._blocks(), how)

    def held_out(self, how: Boosting = PRIOR) -> Mapping[str, float]:
        """How priors that were trained on all other models order the groups of each model, on average."""
        found = []
        for model in dict.fromkeys(self._models):
            prior = self._part([number for number, one in enumerate(self._models) if one != model]).prior(how)
            found += self._part([number for number, one in enumerate(self._models) if one == model]).accuracies(prior)
        mean = mean_accuracy(found)
        names = ("pair_ranking", "kendall_tau", "median_error", "p90_error", "top_regret", "top5_regret")
        return {name: round(value, 4) for name in names if (value := getattr(mean, name)) is not None}

    def accuracies(self, prior: Boosted) -> list[Accuracy]:
        """How good a prior is in each group."""
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
        """By model, where there are models enough to hold some back; else by group; else each row is one."""
        numbers = {model: number for number, model in enumerate(dict.fromkeys(self._models))}
        of_group = [numbers[model] if len(numbers) >= MIN_BLOCKS else one for one, model in enumerate(self._models)]
        lengths = [len(begin) for begin in self._begin]
        if len(set(of_group)) < MIN_BLOCKS:
            return np.arange(sum(lengths), dtype=np.intp)
        return np.repeat(np.array(of_group, dtype=np.intp), lengths)


def save_ranker(
    folder: Path | str, ranker: Boosted, *, trained_on: files.TrainedOn, accuracy: Mapping[str, float]
) -> None:
    """Write a prior, for all models and clusters to come."""
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
    """A prior that was saved; refused where it is damaged, of another version, or not of these features."""
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
