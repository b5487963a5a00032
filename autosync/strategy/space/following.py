"""Draws which messages follow the cluster's links: over `levels` or trees, with shards as uneven as these are.

A step draws whether any do, and mostly one shape for all messages of a kind. So one strategy may have all-reduces and
shards over trees. Clusters with equal links have nothing to draw.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from autosync.specs.model import DType
from autosync.strategy.space.choices import Choices, Setting
from autosync.strategy.space.drafts import StrategyDraft

P_FOLLOWING = 0.4
"""The share of steps with messages that may follow the links in which some do."""
P_ONE_SHAPE = 0.7
"""The share of these in which all messages of a kind have one shape; otherwise each draws one, or none."""


def draw_following(rng: random.Random, drafts: Sequence[StrategyDraft], choices: Choices) -> None:
    """Give messages the settings of their kind and codec that follow the links, or leave them as they are."""
    if not any(choices.following_table.values()):
        return
    found = [(draft, _settings(draft, choices)) for draft in drafts]
    found = [(draft, settings) for draft, settings in found if settings]
    if not found or rng.random() >= P_FOLLOWING:
        return
    has_one_shape = rng.random() < P_ONE_SHAPE
    shapes: dict[tuple[DType, str], Setting] = {}
    for draft, settings in found:
        if has_one_shape:
            key = (draft.dtype, draft.setting.kind)
            if key not in shapes:
                shapes[key] = rng.choice(settings)
            shape = shapes[key].synchroniser
            draft.setting = next((one for one in settings if one.synchroniser == shape), draft.setting)
        else:
            draft.setting = rng.choice((draft.setting, *settings))


def _settings(draft: StrategyDraft, choices: Choices) -> list[Setting]:
    """Return the settings of a message's kind and codec that follow the links."""
    variants = choices.following_table[draft.dtype].get(draft.setting.kind, {}).get(draft.setting.codec, ())
    return [setting for variant in variants for setting in variant if setting.slices or draft.slice_bytes is None]
