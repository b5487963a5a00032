"""Limits are checked when they are made, and are read from and written to files."""

from __future__ import annotations

from typing import Any

import pytest

from autosync.documents import from_plain, to_plain
from autosync.errors import DocumentError
from autosync.strategy.codecs import PowerSGD, TopK
from autosync.strategy.space import Limits
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"overlaps": ()}, "overlaps leaves no choice (at least one)"),
        ({"synchronisers": ()}, "synchronisers leaves no choice (at least one)"),
        ({"topologies": ()}, "topologies leaves no choice (at least one)"),
        ({"server_updates": ()}, "server_updates leaves no choice (at least one)"),
        ({"max_parts": 0}, "max_parts 0 leaves no choice (1 or more)"),
        ({"max_lanes": 0}, "max_lanes 0 leaves no choice (1 or more)"),
        ({"max_priorities": 0}, "max_priorities 0 leaves no choice (1 or more)"),
        ({"staleness": (0,)}, "staleness and periods are numbers of steps (1 or more)"),
        ({"periods": (0,)}, "staleness and periods are numbers of steps (1 or more)"),
        ({"slice_bytes": (512,)}, "slices below 1 KiB are all overhead (1 KiB or more)"),
        ({"slice_bytes": (2048, 2048)}, "slice_bytes names a value twice (each value once)"),
    ],
)
def test_limits_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Limits(**fields)
    assert message in str(caught.value)


def test_limits_read_back() -> None:
    limits = Limits(
        allow=("lossy", "stale"),
        codecs=(TopK(ratio=0.5), PowerSGD(rank=2)),
        outer_optimizers=(None, OuterOptimizer(momentum=0.5)),
        slice_bytes=(2**16, 1000000),
    )
    plain = to_plain(limits)
    assert plain["slice_bytes"] == ["64 KiB", "1 MB"]
    assert from_plain(plain, into=Limits) == limits
    assert to_plain(Limits()) == {}
    assert from_plain({}, into=Limits) == Limits()


@pytest.mark.parametrize(
    ("plain", "place"),
    [
        ({"max_part": 3}, "max_part"),
        ({"allow": ["exact"]}, "allow[0]"),
        ({"topologies": ["star"]}, "topologies[0]"),
        ({"slice_bytes": ["4 m"]}, "slice_bytes[0]"),
        ({"codecs": [{"kind": "int9"}]}, "codecs[0]"),
    ],
)
def test_mistakes_in_a_file_name_their_place(plain: dict[str, Any], place: str) -> None:
    with pytest.raises(DocumentError) as caught:
        from_plain(plain, into=Limits)
    assert str(caught.value.problems[0]).startswith(place)
