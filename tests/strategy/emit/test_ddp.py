"""Strategies as settings of stock DDP: the least that must be said, the very buckets, a reason for refusals."""

import ast
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.graph_batching import GraphBatching
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.specs.untrained import Untrained
from autosync.specs.use_sample import UseSample
from autosync.strategy.codecs import Cast, Int8, PowerSGD
from autosync.strategy.emit.ddp import buckets_under, settings_for, why_not_ddp
from autosync.strategy.emit.script import emit_ddp
from autosync.strategy.emit.settings import DdpSettings
from autosync.strategy.parts import Partition
from autosync.strategy.presets import build_preset
from autosync.strategy.presets.buckets import MIB
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.sparse_gather import SparseGather

NODES = tuple(Node(name=f"n{i}", host=f"h{i}", bandwidth_out=1e8, bandwidth_in=1e8) for i in range(3))
THREE = ClusterSpec(name="three", nodes=NODES)
PRINTABLE = st.characters(categories=["L", "N", "P", "S"])


def _model(*variables: Variable, untrained: tuple[Untrained, ...] = (), sparse: bool = True) -> ModelSpec:
    names = tuple(variable.name for variable in variables)
    segment = Segment(module="all", seconds=0.1, variables=names)
    return ModelSpec(
        name="m",
        optimizer=OptimizerSpec(name="SGD", sparse=sparse),
        variables=variables,
        untrained=untrained,
        timeline=Timeline(device="cpu", source="computed", forward=(segment,), backward=(segment,)),
    )


def _dense(*sizes: int, dtypes: str = "") -> ModelSpec:
    """Variables a, b, c … of so many elements, ready in this order. A dtype is `4` or `8` bytes."""
    last = len(sizes) - 1
    kinds = {"4": "float32", "8": "float64"}
    return _model(
        *(
            Variable(
                name=chr(97 + i),
                shape=(size,),
                use=last - i,
                ready=i,
                dtype=kinds[dtypes[i] if dtypes else "4"],  # type: ignore[arg-type]
            )
            for i, size in enumerate(sizes)
        )
    )


def _buckets(*words: str, codec: Cast | Int8 | PowerSGD | None = None) -> Strategy:
    """`ab` is a message of a and b."""
    return Strategy(messages=tuple(Message(parts=tuple(word), codec=codec) for word in words))


def _built(settings: DdpSettings, model: ModelSpec) -> list[str]:
    return ["".join(variable.name for variable in bucket) for bucket in buckets_under(settings, model, THREE)]


SIX = _dense(*[MIB // 4] * 6)  # 1 MiB each


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["a", "bcdef"], {}),
        (["abcdef"], {"bucket_cap_mb": 6}),
        (["ab", "cd", "ef"], {"bucket_cap_mb": 2}),
        (["abc", "def"], {"bucket_cap_mb": 3}),
        (["a", "b", "c", "d", "e", "f"], {"bucket_cap_mb": 1}),
        (["a", "bc", "def"], {"bucket_cap_mb_list": [1, 2, 3]}),
        (["ab", "c", "d", "e", "f"], {"bucket_cap_mb_list": [2, 1]}),
        (["abcd", "e", "f"], {"bucket_cap_mb_list": [4, 1]}),
    ],
)
def test_the_least_that_must_be_said(words: list[str], arguments: dict[str, object]) -> None:
    settings = settings_for(_buckets(*words), SIX, THREE)
    assert settings.arguments() == {**arguments, "gradient_as_bucket_view": True}
    assert _built(settings, SIX) == words
    plain = settings_for(_buckets(*words), SIX, THREE, gradient_as_bucket_view=False)
    assert plain.arguments() == arguments
    assert plain.is_stock == (not arguments)


def test_of_all_caps_that_do_the_roundest_is_taken() -> None:
    uneven = _dense(1_234_567, 7_654_321, 2_222_222)
    assert settings_for(_buckets("ab", "c"), uneven, THREE).bucket_cap_mb == 33
    tiny = _dense(1, 3, 2)
    settings = settings_for(_buckets("a", "b", "c"), tiny, THREE)
    assert settings.bucket_cap_mb == pytest.approx(3e-6)
    assert _built(settings, tiny) == ["a", "b", "c"]


@st.composite
def _cut(draw: st.DrawFn) -> tuple[ModelSpec, list[str]]:
    """A model of one dtype and a cut of its order of gradients into runs."""
    sizes = draw(st.lists(st.integers(1, 3_000_000), min_size=1, max_size=12))
    names = "".join(chr(97 + i) for i in range(len(sizes)))
    ends = sorted({*draw(st.sets(st.integers(1, len(sizes)))), len(sizes)})
    words = [names[begin:end] for begin, end in zip([0, *ends], ends, strict=False) if begin < end]
    return _dense(*sizes), words


@given(_cut())
def test_any_runs_in_the_order_of_gradients_are_expressed(drawn: tuple[ModelSpec, list[str]]) -> None:
    model, words = drawn
    strategy = _buckets(*words)
    assert _built(settings_for(strategy, model, THREE), model) == words
    assert why_not_ddp(strategy, model, THREE) == []


@given(st.lists(st.integers(1, 2_000_000), min_size=1, max_size=8), st.data())
def test_of_several_dtypes_it_is_right_or_refused(sizes: list[int], data: st.DataObject) -> None:
    dtypes = "".join(data.draw(st.sampled_from("48")) for _ in sizes)
    model = _dense(*sizes, dtypes=dtypes)
    words = []
    for dtype in sorted(set(dtypes)):
        names = "".join(chr(97 + i) for i in range(len(sizes)) if dtypes[i] == dtype)
        cut = data.draw(st.integers(1, len(names)))
        words += [word for word in (names[:cut], names[cut:]) if word]
    reasons = why_not_ddp(_buckets(*words), model, THREE)
    if reasons:
        assert reasons == ["its buckets of several dtypes have sizes that no one list of caps comes to"]
        assert len(set(dtypes)) > 1
    else:
        assert sorted(_built(settings_for(_buckets(*words), model, THREE), model)) == sorted(words)


LINEAR = _model(
    Variable(name="w", shape=(64, 32), kind="linear", factor_rows=4, use=2, ready=0),
    Variable(name="v", shape=(64, 64), kind="linear", factor_rows=4, use=1, ready=1),
    Variable(name="bias", shape=(64,), use=1, ready=2),
    Variable(name="x", shape=(64, 64), kind="linear", factor_rows=4, use=0, ready=3),
)
ALL = ("w", "v", "bias", "x")


def test_powersgd_has_buckets_of_each_dtype() -> None:
    model = _model(
        Variable(name="w", shape=(64, 32), kind="linear", factor_rows=4, use=2, ready=0),
        Variable(name="b", shape=(64,), dtype="float64", use=1, ready=1),
        Variable(name="v", shape=(64, 64), kind="linear", factor_rows=4, use=0, ready=2),
    )
    factors, plain = Message(parts=("w", "v"), codec=PowerSGD(rank=1)), Message(parts=("b",))
    strategy = Strategy(messages=(factors, plain))
    assert why_not_ddp(strategy, model, THREE) == []
    assert sorted(_built(settings_for(strategy, model, THREE), model)) == ["b", "wv"]


def _whole(**fields: object) -> Strategy:
    return Strategy(messages=(Message(parts=ALL, **fields),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (replace(_whole(), overlap="forward"), "transfers overlap the next forward pass"),
        (replace(_whole(), batching=GraphBatching(order="agenda")), "how graphs are batched and dealt to ranks"),
        (_whole(synchroniser=ParameterServer(server="n0")), "w is synchronised by parameter server"),
        (_whole(synchroniser=AllReduce(topology="ring")), "w is all-reduced by ring"),
        (_whole(slice_bytes=4096), "w travels in slices"),
        (_whole(codec=Int8()), "torch has no hook that does what the codec int8 does"),
        (_whole(codec=Cast()), "torch has its hook that casts to bfloat16 on NCCL only, and this is gloo"),
        (_whole(codec=Cast(error_feedback=True)), "torch's hooks that cast feed no errors back"),
        (_whole(codec=PowerSGD(rank=1)), "torch's PowerSGD of rank 1 does not compress bias"),
        (
            Strategy(messages=(Message(parts=("w", "v"), codec=Cast(dtype="float16")), Message(parts=("bias", "x")))),
            "bias travels as it is, and torch's hook casts every bucket",
        ),
        (
            Strategy(messages=(Message(parts=("w", "v")), Message(parts=("bias", "x"), lane=1))),
            "messages are in several lanes",
        ),
        (
            Strategy(messages=(Message(parts=("w", "x")), Message(parts=("v", "bias")))),
            "w and x travel together without v, whose gradient comes between",
        ),
        (
            Strategy(
                partitions={"v": Partition(sizes=(32, 32))},
                messages=(Message(parts=("w", "v[0]")), Message(parts=("v[1]", "bias", "x"))),
            ),
            "v is cut into parts",
        ),
    ],
)
def test_what_ddp_does_not_do_is_refused_with_the_reason(strategy: Strategy, reason: str) -> None:
    assert any(reason in one for one in why_not_ddp(strategy, LINEAR, THREE))
    with pytest.raises(DoesNotApplyError, match="stock DDP cannot do this: "):
        settings_for(strategy, LINEAR, THREE)


def test_one_reason_for_many_variables_is_told_once() -> None:
    strategy = build_preset("ps", LINEAR, THREE)
    assert why_not_ddp(strategy, LINEAR, THREE) == ["w (and 3 more) is synchronised by parameter server"]


def test_a_codec_on_everything_is_a_hook() -> None:
    settings = settings_for(_whole(codec=Cast(dtype="float16")), LINEAR, THREE)
    assert settings.hook == Cast(dtype="float16")
    assert str(settings) == "DDP(gradient_as_bucket_view=True, hook=cast)"


def test_power_sgd_and_what_travels_beside_it_share_a_bucket() -> None:
    thin = (Message(parts=("w", "v", "x"), codec=PowerSGD(rank=2)), Message(parts=("bias",)))
    settings = settings_for(Strategy(messages=thin), LINEAR, THREE)
    assert settings.hook == PowerSGD(rank=2)
    assert [len(bucket) for bucket in buckets_under(settings, LINEAR, THREE)] == [4]


def test_sparse_gradients_stand_alone_as_torch_has_them() -> None:
    rows = {"kind": "embedding", "touched_rows": 2.0, "max_touched_rows": 4, "use": 0}
    dense = (Variable(name="a", shape=(9,), use=2, ready=0), Variable(name="b", shape=(9,), use=1, ready=2))
    sparse = _model(*dense, Variable(name="t", shape=(50, 4), ready=1, sparse=True, **rows))  # type: ignore[arg-type]
    gathered = Message(parts=("t",), synchroniser=SparseGather())
    strategy = Strategy(messages=(Message(parts=("a", "b")), gathered))
    # What stands alone tears no bucket apart.
    assert _built(settings_for(strategy, sparse, THREE), sparse) == ["t", "ab"]
    assert why_not_ddp(Strategy(messages=(Message(parts=("a", "t", "b")),)), sparse, THREE) == [
        "t travels dense, and torch gives DDP a sparse gradient of it"
    ]
    not_sparse = _model(*dense, Variable(name="t", shape=(50, 4), ready=1, **rows))  # type: ignore[arg-type]
    assert why_not_ddp(strategy, not_sparse, THREE) == [
        "t has its rows gathered, and torch gives DDP a dense gradient of it"
    ]


@pytest.mark.parametrize("codec", [Cast(dtype="float16"), PowerSGD(rank=1)])
def test_a_hook_would_encode_gathered_rows_too(codec: Cast | PowerSGD) -> None:
    model = _model(
        Variable(name="w", shape=(64, 32), use=1, ready=0),
        Variable(
            name="t", shape=(50, 4), kind="embedding", touched_rows=2.0, max_touched_rows=4, sparse=True, use=0, ready=1
        ),
    )
    dense, rows = Message(parts=("w",)), Message(parts=("t",), synchroniser=SparseGather())
    assert why_not_ddp(Strategy(messages=(dense, rows)), model, THREE) == []
    assert why_not_ddp(Strategy(messages=(replace(dense, codec=codec), rows)), model, THREE) == [
        "the rows of t travel as they are, and torch's hook sees every bucket"
    ]


def test_a_task_that_weighs_its_batches_is_refused() -> None:
    reason = "the task weighs its batches, and DDP takes the plain mean of the ranks' gradients"
    assert why_not_ddp(_whole(), replace(LINEAR, weighs=True), THREE) == [reason]
    with pytest.raises(DoesNotApplyError, match=reason):
        settings_for(_whole(), replace(LINEAR, weighs=True), THREE)


def test_what_is_never_used_is_frozen_first() -> None:
    never = Untrained(name="never", shape=(4,), reason="unused")
    frozen = Untrained(name="frozen", shape=(4,), reason="frozen")
    model = replace(LINEAR, untrained=(never, frozen))
    assert settings_for(_whole(), model, THREE).frozen == ("never",)


def test_what_got_no_gradient_when_it_was_profiled_is_frozen_first() -> None:
    last = max(LINEAR.variables, key=lambda variable: variable.ready)
    idle = tuple(replace(one, idle=one is last) for one in LINEAR.variables)
    assert settings_for(_whole(), replace(LINEAR, variables=idle), THREE).frozen == (last.name,)


def test_ddp_that_searches_for_unused_parameters_fills_buckets_as_declared() -> None:
    """In the order of readiness it would be a, b, c, d."""
    model = _dense(100, 200, 300, 400)
    model = replace(
        model, variables=model.variables[::-1], use_sample=UseSample(groups=(("b",),), steps=(("0",), ("1",)))
    )
    cap = Strategy(messages=(Message(parts=("d", "c")), Message(parts=("b", "a"))))
    settings = settings_for(cap, model, THREE)
    assert settings.find_unused_parameters
    assert not settings.frozen
    assert [[v.name for v in bucket] for bucket in buckets_under(settings, model, THREE)] == [["d", "c"], ["b", "a"]]
    assert not any("from the second step on" in note for note in emit_ddp(cap, model, THREE).fields["notes"])
    assert any("from the second step on" in note for note in emit_ddp(_whole(), LINEAR, THREE).fields["notes"])
    assert why_not_ddp(Strategy(messages=(Message(parts=("d", "b")), Message(parts=("c", "a")))), model, THREE) == [
        "d and b travel together without c, which is declared between them"
    ]
    declared = replace(model, variables=tuple(sorted(model.variables, key=lambda one: "bacd".index(one.name))))
    assert settings_for(Strategy(messages=(Message(parts=("b", "a")), Message(parts=("c", "d")))), declared, THREE)
    assert not why_not_ddp(Strategy(messages=(Message(parts=("b", "a", "c")), Message(parts=("d",)))), declared, THREE)


def test_what_no_sampled_step_used_is_frozen() -> None:
    """Then DDP need not search, and builds its buckets in the order in which gradients are ready."""
    variables = (*LINEAR.variables[:-1], replace(LINEAR.variables[-1], idle=True))
    model = replace(LINEAR, variables=variables, use_sample=UseSample(groups=(("x",),), steps=(("0",), ("0",))))
    settings = settings_for(_whole(), model, THREE)
    assert settings.frozen == ("x",)
    assert not settings.find_unused_parameters
    seen = replace(model, variables=LINEAR.variables)
    assert settings_for(_whole(), seen, THREE).find_unused_parameters, "the profiled steps used it"


@given(
    names=st.tuples(
        st.text(max_size=30).filter(str.isprintable),
        st.text(max_size=30).filter(lambda name: name not in ALL),
        st.text(PRINTABLE, min_size=1, max_size=30),
    )
)
@example(names=('x"""; __import__("os").system("touch here"); """', 'never"', "C:\\users\\net"))
@example(names=("\\", "\n", '"'))
def test_no_name_becomes_code(names: tuple[str, str, str]) -> None:
    """Models and clusters may be another's files, and what is emitted of them is run."""
    model_name, never, cluster_name = names
    model = replace(LINEAR, name=model_name, untrained=(Untrained(name=never, shape=(4,), reason="unused"),))
    emitted = emit_ddp(_whole(), model, replace(THREE, name=cluster_name))
    module = ast.parse(emitted.python)
    assert [type(one) for one in module.body] == [ast.Expr, ast.ImportFrom, ast.Assign, ast.FunctionDef]
    loops = [one for one in ast.walk(module) if isinstance(one, ast.For)]
    assert [ast.literal_eval(one.iter) for one in loops] == [(never,)]


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="hold nothing"):
        DdpSettings(bucket_cap_mb=0)
    with pytest.raises(ValueError, match="one of the two"):
        DdpSettings(bucket_cap_mb=1, bucket_cap_mb_list=(1,))
