"""Plan files of campaigns: what they may say, what they may not, and that the shipped one asks for enough."""

from pathlib import Path

import pytest

from autosync.errors import DocumentError
from benchmarks.dataset.campaign_plan import MIX, load_campaign

ROOT = Path(__file__).parents[2]

PLAN = """\
schema: autosync.campaign/1
name: tried
groups:
  - {models: [ncf, ncf@x2], clusters: [2-hosts, 4-hosts], records: 7}
  - {models: [ncf], clusters: [4-hosts], records: 9, mix: {sampled: 1}}
limits: {max_parts: 4, slice_bytes: [1 MB]}
screen: {slowest: 3.0}
steps: {min_steps: 6}
"""


def load(tmp_path: Path, text: str = PLAN) -> tuple:  # type: ignore[type-arg]
    path = tmp_path / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    return load_campaign(path)


def test_a_plan_is_what_it_says(tmp_path: Path) -> None:
    campaign, combinations = load(tmp_path)
    assert campaign.limits.slice_bytes == (1_000_000,)
    assert campaign.screen.slowest == 3
    assert campaign.steps.policy().min_steps == 6
    found = {one.name: one for one in combinations}
    assert list(found) == ["ncf:2-hosts", "ncf:4-hosts", "ncf@x2:2-hosts", "ncf@x2:4-hosts"]
    assert {name: one.num_records for name, one in found.items()} == dict.fromkeys(found, 7) | {"ncf:4-hosts": 9}
    assert found["ncf:4-hosts"].mix == {"sampled": 1}
    assert found["ncf:2-hosts"].mix == MIX
    assert [one.dilation for one in combinations] == [1, 1, 2, 2]
    assert len({one.key for one in combinations}) == 4


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("records: 7", "records: 0", "0 records"),
        ("records: 7", "recods: 7", "did you mean 'records'"),
        ("models: [ncf, ncf@x2]", "models: []", "a group without a combination"),
        ("models: [ncf, ncf@x2]", "models: [nfc]", r"plan.yaml:4: groups\[0\].models\[0\]: unknown model 'nfc'"),
        ("clusters: [2-hosts, 4-hosts]", "clusters: [5-hosts]", r"plan.yaml:4: groups\[0\].clusters\[0\]: unknown"),
        ("ncf@x2", "ncf@y2", r"plan.yaml:4: groups\[0\].models\[1\]"),
        ("mix: {sampled: 1}", "mix: {sampled: 0}", "a mix has shares"),
        ("mix: {sampled: 1}", "mix: {guessed: 1}", "guessed"),
        ("name: tried", "name: ../tried", "no name of a campaign"),
        ("name: tried", "name: tried\nvisit_trials: 0", "visit_trials"),
        ("slowest: 3.0", "slowest: 0.5", "slowest is a factor"),
        ("min_steps: 6", "min_steps: 60", "60 to 24 measured steps"),
        ("min_steps: 6", "budget: 6", "budget"),
        ("max_parts: 4", "max_parts: 0", "max_parts 0"),
        ("campaign/1", "campaign/2", "newer"),
        ("name: tried", "name: tried\nquiet: {max_other_cpu: 2}", "max_other_cpu is a share"),
    ],
)
def test_mistakes_are_told_with_their_place(right: str, wrong: str, message: str, tmp_path: Path) -> None:
    assert right in PLAN
    with pytest.raises(DocumentError, match=message):
        load(tmp_path, PLAN.replace(right, wrong))


def test_the_shipped_campaign_asks_for_enough() -> None:
    _, combinations = load_campaign(ROOT / "configs" / "campaigns" / "first.yaml")
    assert sum(one.num_records for one in combinations) >= 5000
    enough = [one for one in combinations if one.num_records >= 52]
    models = {one.model.name for one in enough}
    clusters = {one.cluster.name for one in enough}
    pairs = {(one.model.name, one.cluster.name) for one in enough}
    in_all = [model for model in models if sum((model, cluster) in pairs for cluster in clusters) >= 8]
    assert len({model.partition("@")[0] for model in in_all}) >= 8
    # What simulators are held against: a slow host, two ranks a host, spare servers, sparse embeddings.
    deep = [one for one in combinations if one.num_records * one.mix.get("sampled", 0) / sum(one.mix.values()) >= 175]
    assert len(deep) >= 6
    assert {"4-hosts-one-slow", "2-hosts-2-ranks", "4-hosts-2-servers"} <= {one.cluster.name for one in deep}
    assert any(variable.sparse for one in deep for variable in one.model.variables)


def test_every_shipped_campaign_can_be_read() -> None:
    plans = sorted((ROOT / "configs" / "campaigns").iterdir())
    names = [load_campaign(path)[0].name for path in plans]
    assert names == [path.stem for path in plans]
