"""Examples are dealt by the rates at which storage serves hosts."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import autosync
from autosync.cli import main
from autosync.errors import DocumentError, InputError
from autosync.inputs.served_rates import RankPace, ServedRates, dealt_by_rate, load_rates, save_rates, shares_at
from autosync.strategy.bundle import Bundle, load_bundle, save_bundle

_PACES = st.builds(
    RankPace,
    examples_per_second=st.floats(1, 1e4),
    compute_seconds=st.floats(0, 1),
    overlaps=st.booleans(),
)


@given(st.lists(_PACES, min_size=1, max_size=6), st.integers(0, 200))
def test_no_deal_of_whole_examples_is_done_earlier(paces: list[RankPace], more: int) -> None:
    num_examples = len(paces) + more
    shares = shares_at(paces, num_examples)
    assert sum(shares) == num_examples
    assert min(shares) >= 1
    ends = [share / pace.speed for share, pace in zip(shares, paces, strict=True)]
    # One example more or less on each rank is all that rounding costs.
    ideal = num_examples / sum(pace.speed for pace in paces)
    assert max(ends) <= max(ideal + 1 / min(pace.speed for pace in paces), 1 / min(pace.speed for pace in paces)) + 1e-9


def test_a_rank_whose_input_keeps_up_gets_no_fewer() -> None:
    fast = RankPace(examples_per_second=1000.0, compute_seconds=0.1)
    slow = RankPace(examples_per_second=20.0, compute_seconds=0.1)
    assert shares_at([fast, slow], 16) == (8, 8)
    assert shares_at([fast, replace(slow, examples_per_second=5.0)], 15) == (10, 5)
    # Without workers, input and compute take turns.
    assert shares_at([replace(fast, overlaps=False), replace(slow, overlaps=False)], 16) == (10, 6)


def _bundle(bundle: Bundle) -> Bundle:
    model = replace(bundle.model, batch_size=8)
    seconds = sum(one.seconds for one in (*model.timeline.forward, *model.timeline.backward))
    assert seconds > 0
    return replace(bundle, model=model)


def test_a_bundle_deals_by_its_rates(small_bundle: Bundle, tmp_path: Path) -> None:
    bundle = _bundle(small_bundle)
    # So slow that compute does not count.
    rates = ServedRates(example_bytes=1e9, hosts={"n0": 3e6, "n1": 1e6})
    dealt = dealt_by_rate(bundle, rates)
    assert dealt.strategy.shares == (12, 4)
    assert [node.storage for node in dealt.cluster.nodes] == [3e6, 1e6]
    assert dealt.model.input is not None
    assert dealt.model.input.example_bytes == 1e9
    dealt.check(bundle.model, bundle.cluster)
    save_bundle(tmp_path / "dealt.yaml", dealt)
    assert load_bundle(tmp_path / "dealt.yaml") == dealt
    loaders = [
        autosync.loader(list(range(40)), tmp_path / "dealt.yaml", batch_size=8, rank=rank, world_size=2)
        for rank in range(2)
    ]
    batches = [list(loader.order.batches(0)) for loader in loaders]
    assert [[len(one) for one in mine] for mine in batches] == [[12, 12, 6], [4, 4, 2]]
    assert sorted(number for mine in batches for one in mine for number in one) == list(range(40))


def test_fair_rates_leave_equal_shares(small_bundle: Bundle) -> None:
    rates = ServedRates(example_bytes=1e9, hosts={"n0": 1e6, "n1": 1e6})
    assert dealt_by_rate(_bundle(small_bundle), rates).strategy.shares == ()


def test_the_command(small_bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_bundle(tmp_path / "best.yaml", _bundled_again(small_bundle))
    save_rates(tmp_path / "rates.yaml", ServedRates(example_bytes=1e9, hosts={"n0": 3e6, "n1": 1e6}))
    command = ["input", "deal", f"{tmp_path}/best.yaml", "--rates", f"{tmp_path}/rates.yaml"]
    assert main.run([*command, "-o", f"{tmp_path}/dealt.yaml", "--json"]) == 0
    assert [one["num_examples"] for one in json.loads(capsys.readouterr().out)["ranks"]] == [12, 4]
    assert main.run([*command, "-o", f"{tmp_path}/text.yaml"]) == 0
    assert "examples a step" in capsys.readouterr().out
    assert main.run([*command, "-o", f"{tmp_path}/dealt.yaml"]) == 2
    save_rates(tmp_path / "rates.yaml", ServedRates(example_bytes=1e9, hosts={"n0": 3e6, "other": 1e6}))
    assert main.run([*command, "-o", f"{tmp_path}/third.yaml"]) == 2
    assert "n1 has no rate" in capsys.readouterr().err


def _bundled_again(bundle: Bundle) -> Bundle:
    from autosync.plan.bundling import bundled

    model = replace(bundle.model, batch_size=8)
    return bundled(bundle.strategy, model, bundle.cluster)


def test_rates_are_checked(tmp_path: Path) -> None:
    for example_bytes, hosts in ((0.0, {"a": 1.0}), (1.0, {}), (1.0, {"a": math.inf})):
        with pytest.raises(InputError, match="above 0"):
            ServedRates(example_bytes=example_bytes, hosts=hosts)
    (tmp_path / "rates.yaml").write_text("{schema: autosync.served_rates/1, example_bytes: 5, hosts: {a: -1}}\n")
    with pytest.raises(DocumentError, match="above 0"):
        load_rates(tmp_path / "rates.yaml")
