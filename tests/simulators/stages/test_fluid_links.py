"""Links that several transfers share: fair shares, limits of connections, and bursts after pauses."""

import math

import pytest

from autosync.simulators.stages.fluid_links import FluidLinks


def test_links_are_shared_fairly() -> None:
    links = FluidLinks([10.0, 4.0], [0.0, 0.0])
    links.begin(1, 100.0, (0,), 0.0)
    links.begin(2, 8.0, (0, 1), 0.0)
    # The second gets the 4 of its second link, the first the 6 that are left.
    assert links.next_end() == (2.0, 2)
    links.end(2, 2.0)
    found = links.next_end()
    assert found is not None
    assert found[0] == pytest.approx(2.0 + 88.0 / 10.0)


def test_a_transfer_takes_no_more_than_its_limit() -> None:
    links = FluidLinks([10.0, 100.0], [0.0, 0.0])
    links.begin(1, 20.0, (0,), 0.0, limit=2.0)
    links.begin(2, 80.0, (0,), 0.0)
    links.begin(3, 80.0, (1,), 0.0, limit=5.0)
    # The second gets the 8 that the first leaves.
    assert links.next_end() == (10.0, 1)
    links.end(1, 10.0)
    assert links.next_end() == (10.0, 2)
    links.end(2, 10.0)
    assert links.next_end() == (16.0, 3)


def test_what_links_have_saved_passes_at_once() -> None:
    links = FluidLinks([10.0, 10.0, 10.0], [20.0, 20.0, math.inf])
    links.begin(1, 50.0, (0, 1, 2), 0.0)
    assert links.next_end() == (3.0, 1)
    links.end(1, 3.0)
    # In a second without use, each link saves as much as it carries in a second.
    links.begin(2, 30.0, (0,), 4.0)
    links.begin(3, 30.0, (1,), 4.0, limit=4.0)
    assert links.next_end() == (6.0, 2)
    links.end(2, 6.0)
    assert links.next_end() == (9.0, 3)
    links.end(3, 9.0)
    # The second link went on saving while it carried less than its rate.
    links.begin(4, 30.0, (1,), 9.0)
    assert links.next_end() == (10.0, 4)
