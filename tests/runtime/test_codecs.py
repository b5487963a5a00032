"""Codecs against the reference's: the same bytes' worth, the same numbers back, and nothing that is no number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autosync.errors import OperationError
from autosync.plan.reference.codecs import decode as reference_decode
from autosync.plan.reference.codecs import encode as reference_encode
from autosync.plan.reference.codecs import orthogonal as reference_orthogonal
from autosync.plan.types import Local
from autosync.plan.wires import encoded_bytes
from autosync.runtime.local.codecs import add_decoded, encode, orthogonal, wide
from autosync.runtime.local.operations import Locals
from autosync.runtime.memory.regions import Memory
from autosync.specs.model import DType, Variable
from autosync.strategy.codecs import Cast, Codec, Int8, PowerSGD, Sign, TopK
from autosync.strategy.synchronisers.all_reduce import AllReduce
from tests.helpers.example_plans import plan_of

codecs = st.one_of(
    st.builds(Int8, block=st.integers(1, 300)),
    st.builds(TopK, ratio=st.floats(0.001, 1)),
    st.just(Sign()),
)


def values_of(size: int, seed: int, exponent: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Numbers of very different sizes, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(size, generator=generator, dtype=torch.float64)
    numbers *= torch.exp2(torch.randint(-exponent, exponent + 1, (size,), generator=generator))
    numbers[torch.rand(size, generator=generator) < 0.1] = 0.0
    return numbers.to(dtype)


def there_and_back(codec: Codec, values: torch.Tensor, offset: int = 0) -> torch.Tensor:
    """What values are read as, from bytes that begin anywhere."""
    size = encoded_bytes(codec, len(values))
    buffer = torch.full((offset + size + 3,), 99, dtype=torch.uint8)
    encode(codec, values, buffer[offset : offset + size], name="w")
    assert (buffer[:offset] == 99).all()
    assert (buffer[offset + size :] == 99).all(), "no more bytes than the plan says"
    found = torch.zeros_like(values)
    add_decoded(codec, buffer[offset : offset + size], found)
    return found


@given(codec=codecs, size=st.integers(1, 700), seed=st.integers(0, 2**30), exponent=st.integers(0, 40))
def test_what_comes_back_is_what_the_reference_reads(codec: Codec, size: int, seed: int, exponent: int) -> None:
    values = values_of(size, seed, exponent)
    expected = reference_decode(codec, reference_encode(codec, values.numpy()), size)
    found = there_and_back(codec, values, offset=seed % 5)
    if isinstance(codec, Sign):
        # The mean is summed in another order, and then rounded to float32.
        assert np.array_equal(np.sign(found.numpy()), np.sign(expected))
        np.testing.assert_allclose(found.numpy(), expected, rtol=2.5e-7, atol=0)
    else:
        np.testing.assert_array_equal(found.numpy(), expected)


@given(codec=codecs, size=st.integers(1, 300), seed=st.integers(0, 2**30))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_smaller_numbers_are_encoded_as_the_reference_does_up_to_rounding(
    dtype: torch.dtype, codec: Codec, size: int, seed: int
) -> None:
    values = values_of(size, seed, 2, dtype).to(wide(dtype))
    expected = reference_decode(codec, reference_encode(codec, values.double().numpy()), size)
    found = there_and_back(codec, values)
    if isinstance(codec, TopK):
        # Of numbers with few digits many are alike: which of them are the last of the largest is nobody's matter.
        sent = found != 0
        assert torch.equal(found[sent], values[sent])
        np.testing.assert_array_equal(found.abs().sort().values.numpy(), np.sort(np.abs(expected)).astype(np.float32))
        return
    # A number may lie between two levels so nearly that float32 takes the other.
    step = float(values.abs().max()) / 127 if isinstance(codec, Int8) else 0.0
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1.01 * step)
    assert wide(dtype) == torch.float32


@given(codec=codecs, size=st.integers(1, 100), seed=st.integers(0, 2**30))
def test_what_is_added_can_be_taken_away(codec: Codec, size: int, seed: int) -> None:
    """As error feedback does: all that is left is what the codec took off."""
    values = values_of(size, seed, 3)
    content = torch.zeros(encoded_bytes(codec, size), dtype=torch.uint8)
    encode(codec, values, content, name="w")
    left = values.clone()
    add_decoded(codec, content, left, sign=-1)
    rounding = 4e-16 * float(values.abs().max())
    torch.testing.assert_close(left, values - there_and_back(codec, values), rtol=0, atol=rounding)


@pytest.mark.parametrize("ratio", [0.0005, 0.01, 0.1, 0.3])
@pytest.mark.parametrize("kind", ["random", "rising", "few", "sample is bad"])
def test_the_largest_of_many_are_the_largest(kind: str, ratio: float) -> None:
    values = torch.randn(50_000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    match kind:
        case "rising":
            values = values.sort().values
        case "few":
            values[torch.arange(50_000) % 7 != 0] = 0
        case "sample is bad":
            values[::61] += 100
    expected = reference_decode(TopK(ratio=ratio), reference_encode(TopK(ratio=ratio), values.numpy()), len(values))
    np.testing.assert_array_equal(there_and_back(TopK(ratio=ratio), values).numpy(), expected)


def test_equal_magnitudes_are_kept_in_any_choice_but_as_many() -> None:
    values = torch.tensor([1.0, -1, 1, -1, 0, 1], dtype=torch.float64)
    found = there_and_back(TopK(ratio=0.5), values)
    assert int((found != 0).sum()) == 3
    assert torch.equal(found[found != 0], values[found != 0])


def test_numbers_too_small_for_a_scale_stay_small() -> None:
    """180 times the smallest number: its 127th part is rounded to the smallest, of which 180 do not fit a byte."""
    smallest = 2.0**-149
    values = torch.tensor([180.0, -180, 60, 0]) * smallest
    found = there_and_back(Int8(block=4), values)
    assert found.tolist() == [127 * smallest, -127 * smallest, 60 * smallest, 0]


def test_orthogonal_spans_what_the_reference_spans() -> None:
    matrix = values_of(60, 1, 2).view(12, 5)
    np.testing.assert_allclose(orthogonal(matrix).numpy(), reference_orthogonal(matrix.numpy()), atol=1e-12)
    assert torch.isfinite(orthogonal(torch.zeros(4, 2))).all()


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("codec", [Cast, Int8, TopK, Sign])
def test_error_feedback_adds_what_was_held_back(codec: Callable[..., Codec], *, feedback: bool) -> None:
    made = codec(error_feedback=feedback)
    variable = Variable(name="weight", shape=(20, 15), dtype="float64", use=0, ready=0)
    plan = plan_of(AllReduce(), 1, 1, codec=made, variable=variable)
    memory = Memory(plan, {"weight": torch.zeros(20, 15, dtype=torch.float64)}, contributes=True)
    work = Locals(plan, memory, rank=0, updates={})
    index = next(i for i, one in enumerate(plan.operations) if isinstance(one, Local) and one.kind == "encode")
    operation = plan.operations[index]
    assert isinstance(operation, Local)
    residual = np.zeros(300)
    for step in range(4):
        gradient = values_of(300, step, 2)
        memory.take_gradient("weight", gradient.view(20, 15).clone())
        work.run(index, step)
        values = gradient.numpy() + residual
        expected = reference_decode(made, reference_encode(made, values), 300)
        content = memory.view(operation.outputs, step)
        found = torch.zeros(300, dtype=torch.float64)
        if isinstance(made, Cast):
            found.copy_(content)
        else:
            add_decoded(made, content, found)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
        residual = (values - found.numpy()) * feedback
        kept = {f"{held.what} {held.place.start}:{held.place.stop}": held.values for held in work.kept(0)}
        assert bool(kept) == feedback
        if feedback:
            np.testing.assert_allclose(kept["residual 0:300"].numpy(), residual, rtol=0, atol=1e-13)
            assert np.abs(residual).sum() > 0


def test_momentum_is_corrected_and_masked_as_worked_out_by_hand() -> None:
    """u = m u + g; v = v + u; the largest of v is sent, and both are cleared there."""
    variable = Variable(name="weight", shape=(3,), dtype="float64", use=0, ready=0)
    plan = plan_of(AllReduce(), 1, 1, codec=TopK(ratio=0.3, momentum=0.5), variable=variable)
    memory = Memory(plan, {"weight": torch.zeros(3, dtype=torch.float64)}, contributes=True)
    work = Locals(plan, memory, rank=0, updates={})
    index = next(i for i, one in enumerate(plan.operations) if isinstance(one, Local) and one.kind == "encode")
    operation = plan.operations[index]
    assert isinstance(operation, Local)
    steps = (
        # gradient, what is sent, u afterwards, v afterwards
        ((4.0, 2.0, 1.0), (4.0, 0.0, 0.0), (0.0, 2.0, 1.0), (0.0, 2.0, 1.0)),
        # u = (1, 2, 1.5), v = (1, 4, 2.5)
        ((1.0, 1.0, 1.0), (0.0, 4.0, 0.0), (1.0, 0.0, 1.5), (1.0, 0.0, 2.5)),
        # u = (1.5, 1, -0.25), v = (2.5, 1, 2.25)
        ((1.0, 1.0, -1.0), (2.5, 0.0, 0.0), (0.0, 1.0, -0.25), (0.0, 1.0, 2.25)),
        # u = (0, 0.5, -0.125), v = (0, 1.5, 2.125): without new gradients the velocities go on by themselves
        ((0.0, 0.0, 0.0), (0.0, 0.0, 2.125), (0.0, 0.5, 0.0), (0.0, 1.5, 0.0)),
    )
    for step, (gradient, sent, velocity, residual) in enumerate(steps):
        memory.take_gradient("weight", torch.tensor(gradient, dtype=torch.float64))
        work.run(index, step)
        found = torch.zeros(3, dtype=torch.float64)
        add_decoded(TopK(ratio=0.3), memory.view(operation.outputs, step), found)
        assert found.tolist() == list(sent)
        kept = {held.what: held.values.tolist() for held in work.kept(step)}
        assert kept == {"residual": list(residual), "velocity": list(velocity)}


WORDS = "the gradient of weight has a NaN or an infinity"


def put(number: float, at: int) -> Callable[[torch.Tensor], None]:
    def change(values: torch.Tensor) -> None:
        values.view(-1)[at] = number

    return change


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("at", [0, 13, 23])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize(
    "codec", [Cast, lambda **k: Cast(dtype="float16", **k), lambda **k: Int8(block=5, **k), TopK, Sign, PowerSGD]
)
def test_what_is_no_number_is_refused_by_the_variables_name(
    codec: Callable[..., Codec], dtype: DType, at: int, number: float, *, feedback: bool
) -> None:
    made = codec(error_feedback=feedback)
    if isinstance(made, PowerSGD):
        made = PowerSGD(rank=2, error_feedback=feedback)
    if isinstance(made, Cast) and dtype == "bfloat16":
        return
    with pytest.raises(OperationError, match=WORDS):
        encode_gradient(made, dtype, put(number, at))


def encode_gradient(codec: Codec, dtype: DType, change: Callable[[torch.Tensor], None]) -> None:
    """Encode a gradient of ones, changed somehow, as a rank does."""
    variable = Variable(name="weight", shape=(4, 6), dtype=dtype, use=0, ready=0)
    plan = plan_of(AllReduce(), 1, 1, codec=codec, variable=variable)
    memory = Memory(plan, {"weight": torch.zeros(4, 6, dtype=getattr(torch, dtype))}, contributes=True)
    gradient = torch.ones(4, 6, dtype=getattr(torch, dtype))
    change(gradient)
    memory.take_gradient("weight", gradient)
    index = next(i for i, one in enumerate(plan.operations) if isinstance(one, Local) and one.kind == "encode")
    Locals(plan, memory, rank=0, updates={}).run(index, 0)


@pytest.mark.parametrize("codec", [Cast(dtype="float16"), Int8(), TopK(), Sign()])
def test_what_is_too_large_for_the_wire_is_refused(codec: Codec) -> None:
    """float16 ends at 65504; all else is told in float32."""
    large = 7e4 if isinstance(codec, Cast) else 1e300
    with pytest.raises(OperationError, match=WORDS):
        encode_gradient(codec, "float64", put(large, 7))


def test_a_sum_that_float16_cannot_say_is_refused() -> None:
    variable = Variable(name="weight", shape=(4, 6), use=0, ready=0)
    plan = plan_of(AllReduce(), 1, 1, codec=Cast(dtype="float16"), variable=variable)
    memory = Memory(plan, {"weight": torch.zeros(4, 6)}, contributes=True)
    memory.take_gradient("weight", torch.full((4, 6), 4e4))
    work = Locals(plan, memory, rank=0, updates={})
    encode_at, decode_at = (
        next(i for i, one in enumerate(plan.operations) if isinstance(one, Local) and one.kind == kind)
        for kind in ("encode", "decode")
    )
    work.run(encode_at, 0)
    operation = plan.operations[decode_at]
    assert isinstance(operation, Local)
    memory.view(operation.inputs).mul_(2)
    with pytest.raises(OperationError, match=WORDS):
        work.run(decode_at, 0)


@pytest.mark.parametrize(
    ("number", "doubled", "refusing"),
    [
        # The left factor, its sum, the right factor, and its sum are too large.
        (6e4, "", "encode"),
        (3e4, "encode", "project"),
        (4e4, "", "project"),
        (3e4, "project", "decode"),
    ],
)
def test_factors_that_float16_cannot_say_are_refused(number: float, doubled: str, refusing: str) -> None:
    variable = Variable(name="weight", shape=(4, 6), dtype="float16", use=0, ready=0)
    plan = plan_of(AllReduce(), 1, 1, codec=PowerSGD(rank=2), variable=variable)
    memory = Memory(plan, {"weight": torch.zeros(4, 6).half()}, contributes=True)
    gradient = torch.zeros(4, 6).half()
    # The right factor begins with 1.3 for this column.
    gradient[:, 3] = number
    memory.take_gradient("weight", gradient)
    work = Locals(plan, memory, rank=0, updates={})
    for kind in ("encode", "project", "decode"):
        index, operation = next(
            (i, one) for i, one in enumerate(plan.operations) if isinstance(one, Local) and one.kind == kind
        )
        if kind == refusing:
            with pytest.raises(OperationError, match=WORDS):
                work.run(index, 0)
            return
        work.run(index, 0)
        if kind == doubled:
            # As the sum over two ranks with the same gradient.
            memory.view(operation.outputs[-1:]).mul_(2)
