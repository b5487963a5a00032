"""Our own synchronisers pass the suite that third parties run; a wrong one does not."""

from __future__ import annotations

import dataclasses

import pytest

from autosync.plan import templates
from autosync.plan.steps import LocalStep, Site, Template
from autosync.strategy.codecs import Codec
from autosync.strategy.synchronisers import SHIPPED_KINDS
from autosync.strategy.synchronisers.sharded import Sharded
from autosync.testing.synchronisers import check_synchroniser


@pytest.mark.parametrize("kind", SHIPPED_KINDS)
def test_ours_pass(kind: str) -> None:
    check_synchroniser(kind)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(AssertionError, match="gossip is in the table"):
        check_synchroniser("gossip")


def test_a_template_that_forgets_to_average_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    function_at = templates._template_function

    def wrong(site: Site, synchroniser: Sharded, codec: Codec | None) -> Template:
        made = function_at(Sharded.template)(site, synchroniser, codec)
        steps = [
            step._replace(kind="copy") if isinstance(step, LocalStep) and step.kind == "average" else step
            for step in made.collect.steps
        ]
        return dataclasses.replace(made, collect=dataclasses.replace(made.collect, steps=tuple(steps)))

    monkeypatch.setattr(
        templates, "_template_function", lambda place: wrong if place == Sharded.template else function_at(place)
    )
    with pytest.raises(AssertionError, match="is not what its strategy means"):
        check_synchroniser("sharded")
