"""Using the winner: an argument of stock DDP if that is enough, else two lines and the reason."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autosync.search.candidates import STOCK_DDP, Candidate, candidate
from autosync.search.guarantee import ProofContestant, ProofResult, ProofRole
from autosync.search.measurement_effort import QUICK_EFFORT
from autosync.search.prepared_trial import TrialPreparer
from autosync.search.trial_runner import TrialRunner
from autosync.search.winner_usage import WinnerUsage, bundle_of, usage, write_bundle
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec
from autosync.strategy.bundle import load_bundle
from autosync.strategy.codecs import Cast
from autosync.strategy.emit.settings import DdpSettings
from autosync.strategy.presets import build_preset
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.contestant import Contestant

BEST = Path("best.yaml")


@pytest.fixture
def trials(model: ModelSpec, cluster: ClusterSpec) -> TrialRunner:
    service = FakeService({}, others=FakeSteps(seconds=0.1))
    return TrialRunner(
        study="s", service=service, preparer=TrialPreparer(model, cluster), is_replayed=True, effort=QUICK_EFFORT
    )


def _contest(
    trials: TrialRunner, one: Candidate, role: ProofRole = "finalist", ddp: DdpSettings | None = None
) -> ProofResult:
    contestant = trials.contestant(one) if ddp is None else Contestant(name="x", ddp=ddp)
    measured = trials.run(one, 0).measurement
    assert measured is not None
    return ProofResult(
        contestant=ProofContestant(role=role, candidate=one, run_as=contestant), measurement=measured, ratio=None
    )


def _preset(trials: TrialRunner, name: str) -> Candidate:
    return candidate(f"preset:{name}", build_preset(name, trials.model, trials.cluster), trials.model, trials.cluster)


def _usage(trials: TrialRunner, result: ProofResult) -> WinnerUsage:
    return usage(result, bundle_of(trials, result), BEST, script=Path("s/tuned_ddp.py"))


def test_the_default_needs_nothing(trials: TrialRunner) -> None:
    found = _usage(trials, _contest(trials, STOCK_DDP, "default"))
    assert found.lines == ("leave the training script as it is: DistributedDataParallel(model)",)


def test_a_bucket_is_one_argument(trials: TrialRunner) -> None:
    one = _preset(trials, "all_reduce_per_variable")
    found = _usage(trials, _contest(trials, one, "best bucket", DdpSettings(bucket_cap_mb=0.25)))
    assert found.lines[1] == "    model = DistributedDataParallel(model, bucket_cap_mb=0.25)"


def test_what_is_more_than_a_line_is_a_file(trials: TrialRunner) -> None:
    one = _preset(trials, "ddp")
    for settings in (
        DdpSettings(bucket_cap_mb_list=tuple(float(cap) for cap in range(1, 60))),
        DdpSettings(bucket_cap_mb=1, frozen=("never",)),
    ):
        found = _usage(trials, _contest(trials, one, "finalist", settings))
        assert found.lines[0].startswith("copy s/tuned_ddp.py beside the training script")
        assert found.lines[1:] == ("    from tuned_ddp import wrap", "    model = wrap(model)")
        assert found.script is not None
        script: dict[str, Any] = {}
        exec(found.script, script)
        assert script["ARGUMENTS"] == settings.arguments()


def test_the_file_has_the_flags_that_were_proved(trials: TrialRunner) -> None:
    """The bundle has buckets and no flags, so what is emitted of it would be something else."""
    one = _preset(trials, "fp16")
    settings = DdpSettings(bucket_cap_mb=1, static_graph=True, hook=Cast(dtype="float16"))
    found = _usage(trials, _contest(trials, one, "finalist", settings))
    assert found.script is not None
    assert '"static_graph": True' in found.script
    assert "register_comm_hook(None, fp16_compress_hook)" in found.script


def test_our_engine_is_two_lines_and_says_whether_stock_ddp_could(trials: TrialRunner) -> None:
    ours = _usage(trials, _contest(trials, _preset(trials, "ps")))
    assert ours.lines[1:4] == (
        "    import autosync",
        "    model, optimizer = autosync.parallelize(model, optimizer)",
        "started by: autosync launch best.yaml -- train.py",
    )
    assert ours.settings is None
    assert ours.lines[-1] == f"stock DDP cannot do the same: {ours.refusal}"
    assert "is synchronised by parameter server" in ours.refusal
    both = _usage(trials, _contest(trials, _preset(trials, "all_reduce_per_variable")))
    assert both.settings is not None
    assert both.refusal == ""
    assert both.lines[-1].endswith("autosync emit best.yaml --to ddp -o tuned_ddp.py")


def test_for_a_task_that_weighs_its_batches_stock_ddp_is_not_recommended(trials: TrialRunner) -> None:
    weighing = replace(trials, preparer=TrialPreparer(replace(trials.model, weighs=True), trials.cluster))
    reason = "the task weighs its batches, and DDP takes the plain mean of the ranks' gradients"
    ours = _usage(weighing, _contest(weighing, _preset(weighing, "all_reduce_per_variable")))
    assert ours.settings is None
    assert ours.lines[-1] == f"stock DDP cannot do the same: {reason}"
    default = _usage(weighing, _contest(weighing, STOCK_DDP, "default"))
    assert default.lines[1:] == (f"but {reason}; to weigh them, train with best.yaml (docs/shares.md)",)


def test_nodes_that_only_serve_are_spoken_of(trials: TrialRunner) -> None:
    server = Node(name="spare", host="spare", role="server", devices=0, bandwidth_out=1e9, bandwidth_in=1e9)
    cluster = replace(trials.cluster, nodes=(*trials.cluster.nodes, server))
    wider = replace(trials, preparer=TrialPreparer(trials.model, cluster))
    assert any("serve" in line for line in _usage(wider, _contest(wider, _preset(wider, "ps"))).lines)
    assert not any("serve" in line for line in _usage(trials, _contest(trials, _preset(trials, "ddp"))).lines)


def test_the_bundle_is_written_where_it_is_wanted(
    trials: TrialRunner, cluster: ClusterSpec, model: ModelSpec, tmp_path: Path
) -> None:
    bundle = bundle_of(trials, _contest(trials, STOCK_DDP, "default"))
    assert bundle.strategy == build_preset("ddp", model, cluster)
    assert write_bundle(bundle, tmp_path / "best.yaml", None) == tmp_path / "best.yaml"
    assert write_bundle(bundle, tmp_path / "best.yaml", tmp_path / "mine.yaml") == tmp_path / "mine.yaml"
    assert load_bundle(tmp_path / "mine.yaml") == load_bundle(tmp_path / "best.yaml")
