"""The file of input settings, and what a bundle says of the input of its ranks."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from autosync import documents
from autosync.errors import InputError
from autosync.specs.input_settings import InputSettings
from autosync.specs.model import ModelSpec
from autosync.specs.rank_variables import BUNDLE_VARIABLE
from autosync.strategy.bundle import Bundle, load_bundle, save_bundle
from autosync.strategy.canonical import strategy_id
from autosync.strategy.files import is_bundle, is_strategy, load_strategy, save_strategy
from autosync.strategy.representation import Strategy

KIND, VERSION = "input_settings", 1

GivenSettings = InputSettings | Bundle | Path | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInput:
    """What a bundle says of the input of its ranks. Without shares, all ranks compute equally many examples."""

    settings: InputSettings
    shares: tuple[int, ...] = ()


def load_settings(path: Path | str) -> InputSettings:
    """Read input settings from a file of their own, a strategy or a bundle.

    All mistakes of the file are reported together, with their lines. Without input settings, a strategy has the
    defaults, and a bundle has those that its task states.
    """
    return _load(path).settings


def save_settings(path: Path | str, settings: InputSettings) -> None:
    """Write a file of input settings: YAML, or JSON if its name ends in .json."""
    documents.write(path, documents.dump(settings, kind=KIND, version=VERSION))


def load_whole(path: Path | str) -> Strategy | Bundle:
    """Read the strategy or bundle of a file, to be given input settings."""
    return load_bundle(path) if is_bundle(documents.read_document(path)) else load_strategy(path)[0]


def save_with(path: Path | str, whole: Strategy | Bundle, settings: InputSettings) -> None:
    """Write a strategy or bundle with these input settings."""
    if isinstance(whole, Strategy):
        save_strategy(path, replace(whole, input=settings))
        return
    strategy = replace(whole.strategy, input=settings)
    identity = strategy_id(strategy, whole.model, whole.cluster)
    save_bundle(path, replace(whole, strategy=strategy, strategy_id=identity))


def input_of(given: GivenSettings) -> RankInput:
    """Return the input that a caller gave: settings, a bundle, or the path of a file with one of them.

    None means the bundle that the environment names (AUTOSYNC_BUNDLE), or else the defaults.
    """
    if given is None:
        given = os.environ.get(BUNDLE_VARIABLE) or InputSettings()
    match given:
        case InputSettings():
            return RankInput(settings=given)
        case Bundle():
            return _of_strategy(given.strategy, given.model)
        case Path() | str():
            return _load(given)
    raise InputError(
        f"settings are of type {type(given).__name__}", rule="InputSettings, a bundle, or the path of a file with them"
    )


def _load(path: Path | str) -> RankInput:
    document = documents.read_document(path)
    if is_bundle(document):
        return input_of(load_bundle(path))
    if is_strategy(document):
        return _of_strategy(load_strategy(path)[0])
    return RankInput(settings=documents.parse(document, kind=KIND, version=VERSION, into=InputSettings))


def _of_strategy(strategy: Strategy, model: ModelSpec | None = None) -> RankInput:
    usual = None if model is None or model.input is None else model.input.usual
    return RankInput(settings=strategy.input or usual or InputSettings(), shares=strategy.shares)
