"""Stock DDP on real ranks with every setting: it trains, and only hooks change what arrives."""

from pathlib import Path

import pytest

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model_file import model_of
from autosync.strategy.codecs import Cast, PowerSGD
from autosync.strategy.emit.settings import DdpSettings
from autosync.trials.contestant import Contestant
from autosync.trials.service import TrialService

TASK = str(Path(__file__).with_name("task.py"))

EXACT = {
    "one cap": DdpSettings(bucket_cap_mb=0.0001),
    "caps": DdpSettings(bucket_cap_mb_list=(0.00001, 0.001), gradient_as_bucket_view=True),
    "static": DdpSettings(static_graph=True, gradient_as_bucket_view=True),
    "batched": DdpSettings(batched_grad_copy=True),
    # Torch's PowerSGD leaves the first steps alone.
    "power": DdpSettings(hook=PowerSGD(rank=1)),
}


@pytest.mark.usefixtures("forked_ranks")
def test_every_setting_trains_and_only_a_cast_rounds(cluster: ClusterSpec, tmp_path: Path) -> None:
    with TrialService(
        target=TASK, model=model_of(TASK), cluster=cluster, folder=tmp_path, timeout_seconds=60.0
    ) as service:
        service.prepare(Contestant(name="stock", plain_sgd=True))
        samples = service.run("stock", 1)
        assert [len(losses) for losses in samples.losses] == [1, 1]
        assert all(loss > 0 for losses in samples.losses for loss in losses)
        settings = {**EXACT, "half": DdpSettings(hook=Cast(dtype="float16"))}
        for name, ddp in settings.items():
            service.prepare(Contestant(name=name, ddp=ddp, plain_sgd=True))
            service.run(name, 1)
            apart = service.difference("stock", name)
            assert 1e-6 < apart < 1e-2 if name == "half" else apart < 1e-6
            service.run(name, 3)
            service.release(name)


@pytest.mark.parametrize(
    "settings",
    [
        *EXACT.values(),
        DdpSettings(hook=Cast(dtype="bfloat16"), frozen=("a.b",)),
        DdpSettings(hook=PowerSGD(rank=2, error_feedback=False), find_unused_parameters=True),
    ],
    ids=str,
)
def test_settings_reach_the_ranks_as_they_are(settings: DdpSettings) -> None:
    assert DdpSettings.from_plain(settings.to_plain()) == settings
