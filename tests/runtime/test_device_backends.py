"""Which devices and backends train: real ranks on this machine's device, NCCL's demands, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from autosync.errors import OperationError
from autosync.runtime.engine.device import DevicePlacement
from autosync.runtime.engine.rank_script import script_of
from autosync.runtime.local.engine_updates import engine_updates
from autosync.runtime.session.support import refuse_placement
from autosync.strategy.synchronisers.all_reduce import AllReduce
from tests.helpers.example_plans import plan_of
from tests.helpers.gpu_rehearsals import Rehearsal


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "rehearsal",
    [
        pytest.param("apart", marks=pytest.mark.slow),
        pytest.param("one order", marks=pytest.mark.slow),
        pytest.param("nccl", marks=pytest.mark.slow),
    ],
)
def test_real_ranks_train_what_one_process_would(rehearsal: Rehearsal, exactness: Any) -> None:
    # What takes long is that ranks start: on one cluster here, on all of them at length.
    options = ("--rehearse", rehearsal, "--cluster", "2 nodes x 2", "--count", "24", "--seed", "11")
    found = exactness(*options, limit_seconds=240)
    assert found["failures"] == []
    assert found["trained"] == 24


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("rehearsal", ["apart", "one order", "nccl"])
def test_real_ranks_train_what_one_process_would_at_length(rehearsal: Rehearsal, exactness: Any) -> None:
    found = exactness("--rehearse", rehearsal, "--count", "400", "--seed", "12", limit_seconds=900)
    assert found["failures"] == []
    assert found["trained"] == 400


def test_native_collectives_of_uneven_buffers_and_contents(make_ranks: Any) -> None:
    assert make_ranks("four nodes").run_one("device_cases:native_collectives") == [["gloo"]] * 4


def test_parameters_on_several_devices_are_refused() -> None:
    parameters = {"a": torch.empty(2), "b": torch.empty(2, device="meta")}
    plan = plan_of(AllReduce(), 1, 1)
    with pytest.raises(
        OperationError, match="b is on meta and a on cpu: all parameters of a rank must be on one device"
    ):
        refuse_placement(DevicePlacement.of(plan, parameters), parameters, checks=False)


def test_devices_that_are_neither_cpu_nor_cuda_are_refused() -> None:
    parameters = {"a": torch.empty(2, device="meta")}
    with pytest.raises(OperationError, match="the parameters are on meta; the engine trains on the CPU and on CUDA"):
        refuse_placement(DevicePlacement.of(plan_of(AllReduce(), 1, 1), parameters), parameters, checks=False)


def nccl_plan() -> Any:
    return replace(plan_of(AllReduce(), 1, 1), backend="nccl")


def test_nccl_needs_a_gpu() -> None:
    parameters = {"a": torch.empty(2)}
    with pytest.raises(OperationError, match="the parameters are on cpu; NCCL, the cluster's backend, needs them on"):
        refuse_placement(DevicePlacement.of(nccl_plan(), parameters), parameters, checks=False)


def test_nccl_has_no_headers_and_torch_may_be_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = replace(DevicePlacement.of(nccl_plan(), {}), device=torch.device("cuda", 0))
    assert placement.in_one_order
    assert not placement.is_apart
    for is_there, expected in ((False, "was built without NCCL"), (True, "has no headers")):
        monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda there=is_there: there)
        with pytest.raises(OperationError, match=expected):
            refuse_placement(placement, {}, checks=True)


def test_gloo_sends_host_memory() -> None:
    plan = plan_of(AllReduce(), 1, 1)
    meta = DevicePlacement.of(plan, {"a": torch.empty(2, device="meta")})
    assert meta.is_apart
    assert not meta.in_one_order
    on_cpu = DevicePlacement.of(plan, {"a": torch.empty(2)})
    assert not on_cpu.is_apart
    assert on_cpu.streams(script_of(plan, 0, 1, engine_updates(plan))) is None
