"""docs/comparison.md names the command's options, all flags, and the counts of the code."""

import re
from pathlib import Path

from autosync.cli.compare import compare
from autosync.datasets.schema import FLAGS
from autosync.search.measurement_effort import NORMAL_EFFORT
from autosync.trials.compare import DEFAULT_DESIGN
from autosync.trials.policy import DEFAULT_POLICY
from autosync.trials.statistics import min_rounds

PAGE = (Path(__file__).parents[2] / "docs" / "comparison.md").read_text(encoding="utf-8")
SENTENCES = " ".join(PAGE.split())


def test_every_option_is_told_and_exists() -> None:
    options = {name for parameter in compare.params for name in parameter.opts if name.startswith("--")}
    assert set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", PAGE)) == options


def test_every_flag_is_told() -> None:
    table = PAGE.partition("## Flags")[2]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(FLAGS)


def test_the_counts_are_those_of_the_code() -> None:
    policy, design = DEFAULT_POLICY, DEFAULT_DESIGN
    assert f"At least {policy.min_warmup_steps} steps are discarded" in SENTENCES
    assert f"at most {policy.max_warmup_steps}" in SENTENCES
    assert f"In each of {design.num_rounds} rounds" in SENTENCES
    assert f"{min_rounds()} rounds of one step" in SENTENCES
    assert f"by more than {design.least_difference:.1%}".replace("%", " %") in SENTENCES
    trial = NORMAL_EFFORT.trial
    assert f"narrower than {trial.interval_share:.0%}".replace("%", " %") in SENTENCES
    assert f"at least {trial.min_steps} and at most {trial.max_steps}, within {trial.budget_seconds:g} s" in SENTENCES
    assert f"above {trial.give_up_factor:g} times the best" in SENTENCES
    assert f"more than {policy.max_cpu_share:.0%}".replace("%", " %") in SENTENCES
