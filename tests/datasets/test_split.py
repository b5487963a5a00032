"""Parts of a dataset: every record is in one of them, and by lot no strategy is in two."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from autosync.datasets.schema import Record
from autosync.datasets.split import split_by, split_by_share
from autosync.errors import InputError

MakeRecord = Callable[..., Record]


@pytest.fixture
def records(make_record: MakeRecord) -> list[Record]:
    return [
        make_record(
            trial=number,
            model_name=f"m{number % 3}",
            model_fingerprint=f"f{number % 3}",
            strategy_id=f"s{number // 2}",
            plan_id=f"p{number // 2}",
        )
        for number in range(120)
    ]


def test_by_model_and_by_cluster(records: list[Record]) -> None:
    parts = split_by(records, "model")
    assert list(parts) == ["m0", "m1", "m2"]
    assert [len(part) for part in parts.values()] == [40, 40, 40]
    assert all(record.model_name == name for name, part in parts.items() for record in part)
    assert list(split_by(records, "cluster").values()) == [records]


def test_a_model_at_two_speeds_is_one_part(make_record: MakeRecord) -> None:
    records = [make_record(trial=number, model_name=name) for number, name in enumerate(("gpt", "gpt@x2", "gpt_mini"))]
    assert split_by(records, "model") == {"gpt": records[:2], "gpt_mini": records[2:]}


def test_a_share_of_the_strategies_of_each_combination(records: list[Record]) -> None:
    parts = split_by_share(records, 0.75, seed=3)
    names = {part: {(one.model_name, one.strategy_id) for one in found} for part, found in parts.items()}
    assert not names["train"] & names["test"]
    assert sorted(one.trial for part in parts.values() for one in part) == list(range(120))
    for model in ("m0", "m1", "m2"):
        assert sum(name == model for name, _ in names["train"]) == 30
    shuffled = random.Random(0).sample(records, len(records))
    again = split_by_share(shuffled, 0.75, seed=3)
    assert {one.trial for one in again["train"]} == {one.trial for one in parts["train"]}
    assert {one.trial for one in split_by_share(records, 0.75, seed=4)["train"]} != {
        one.trial for one in again["train"]
    }


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(("model_name", "model_spec"), id="profiled"),
        pytest.param(("cluster_spec",), id="probed"),
        pytest.param(("plan_id",), id="lowered otherwise"),
        pytest.param(("strategy_id",), id="mirrored"),
    ],
)
def test_what_is_measured_again_stays_in_its_part(changed: tuple[str, ...], records: list[Record]) -> None:
    first = [one for one in records if one.model_name == "m0"]
    again = [
        replace(one, trial=one.trial + 200, **{name: f"{getattr(one, name)}@x2" for name in changed}) for one in first
    ]
    parts = split_by_share([*first, *again], 0.5, seed=0)
    trials = {part: {one.trial % 200 for one in found} for part, found in parts.items()}
    assert not trials["train"] & trials["test"]


def test_strategies_that_share_one_of_several_plans_stay_together(records: list[Record]) -> None:
    first = [one for one in records if one.model_name == "m0"]
    # Each was measured twice, by two versions with plans of their own, and its mirror image by the second one alone.
    later = [replace(one, trial=one.trial + 200, plan_id=f"z{one.plan_id}") for one in first]
    mirrored = [replace(one, trial=one.trial + 200, strategy_id=f"{one.strategy_id}m") for one in later]
    for seed in range(5):
        parts = split_by_share([*first, *later, *mirrored], 0.5, seed=seed)
        trials = {part: {one.trial % 200 for one in found} for part, found in parts.items()}
        assert not trials["train"] & trials["test"]


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan"), float("inf")])
def test_a_share_is_a_share(share: float, records: list[Record]) -> None:
    with pytest.raises(InputError, match="above 0 and below 1"):
        split_by_share(records, share, seed=0)
