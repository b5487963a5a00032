"""The presets of codecs from torch's communication hooks and from papers, each on the buckets of stock DDP.

A codec changes training, so none of these is exact. A strategy is the same in all steps, so the presets leave out a
system's warm-up in its first steps; a training can change from one strategy to another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.codecs import Cast, Codec, Int8, PowerSGD, Sign, TopK
from autosync.strategy.presets.ddp import ddp
from autosync.strategy.presets.options import count_option, number_option
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce


def bf16(model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """Lossy: DDP's gradients as bfloat16 on the wire, half the bytes.

    Buckets are as in `ddp`; float32 and float64 are cast, smaller types and rows travel as they are. torch's hook
    divides by the number of ranks before it sums; here the sum is divided. The results differ only in the rounding of
    numbers near the ends of the type's range.

    Source: torch 2.13, `bf16_compress_hook` in torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py.
    """
    return _cast(model, cluster, Cast(dtype="bfloat16"))


def fp16(model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """Lossy: DDP's gradients as float16 on the wire, half the bytes.

    As `bf16`, with more precise numbers in a smaller range: a sum of gradients above 65504 is an error.

    Source: torch 2.13, `fp16_compress_hook` in torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py.
    """
    return _cast(model, cluster, Cast(dtype="float16"))


def int8(model: ModelSpec, cluster: ClusterSpec, *, block: int = 512) -> Strategy:
    """Lossy: DDP's gradients as one byte a number, with a scale for each 512.

    Every rank gathers the bytes of all ranks and averages them, without error feedback. torch's hook puts 256 levels
    between the smallest and the largest number of each block of a bucket; here 255 levels lie around zero, and a
    block ends at the end of its variable.

    Source: torch 2.13, `quantization_perchannel_hook` in torch/distributed/algorithms/ddp_comm_hooks/
    quantization_hooks.py (`bucket_size=512`); Alistarh et al., "QSGD", NeurIPS 2017 (a scale for each block).
    """
    codec = Int8(block=count_option("block", block))
    return _encoded(model, cluster, codec, lambda _: True, "a codec needs a gradient that travels dense")


def sign(model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """Lossy: signs of the gradients and one scale a variable, with error feedback.

    Buckets are as in `ddp`. A variable's scale is the mean magnitude of its gradient plus the error held back. The
    paper holds back gradients times the learning rate, here gradients are held back; the two are equal while the
    learning rate stays the same.

    Source: Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019,
    Algorithm 1 (EF-signSGD), layer by layer as in its experiments; with many workers, Zheng et al.,
    "Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback", NeurIPS 2019.
    """
    return _encoded(model, cluster, Sign(), lambda _: True, "a codec needs a gradient that travels dense")


def power_sgd(model: ModelSpec, cluster: ClusterSpec, *, rank: int = 1, min_compression_rate: float = 2.0) -> Strategy:
    """Lossy: gradients of matrices as products of two thin ones, with error feedback; the rest all-reduced.

    A gradient of n x m (its first axis by all others) is compressed if (n + m) * rank * min_compression_rate < n * m.
    Each bucket of `ddp` becomes a message of its compressed gradients and one of its other gradients. torch all-reduces
    everything for the first `start_powerSGD_iter` (1,000) steps. A strategy is the same in all steps, so train these
    steps with another one. A gradient with a side no longer than the rank is not compressed: it would save nothing.

    Source: torch 2.13, `PowerSGDState` and `powerSGD_hook` in torch/distributed/algorithms/ddp_comm_hooks/
    powerSGD_hook.py, their defaults and `_should_compress`; Vogels et al., "PowerSGD", NeurIPS 2019, Algorithms 1, 2.
    """
    codec = PowerSGD(rank=count_option("rank", rank))
    rate = number_option(
        "min_compression_rate", min_compression_rate, rule="a number above 0", holds=lambda one: one > 0
    )
    why = f"a matrix of n x m with (n + m) * {codec.rank} * {rate:g} < n * m, and both sides above the rank"
    return _encoded(model, cluster, codec, lambda v: is_worth_factors(v, rank=codec.rank, rate=rate), why)


def dgc(model: ModelSpec, cluster: ClusterSpec, *, ratio: float = 0.001, momentum: float = 0.9) -> Strategy:
    """Lossy: the largest thousandth of each worker's velocity, with error feedback (Deep Gradient Compression).

    It has gradient accumulation, momentum correction and momentum factor masking, for every variable with two axes or
    more; the largest numbers are found exactly. Vectors are all-reduced. The momentum replaces the optimizer's, so the
    optimizer must have no state: plain SGD. It leaves out the warm-up of the ratio over the first epochs, the clipping
    of each worker's gradient, Nesterov's variant, and the momentum of vectors.

    Source: Lin et al., "Deep Gradient Compression", ICLR 2018, section 3 and appendix B; the choice of variables is
    from the authors' code (synxlin/deep-gradient-compression: train.py, dgc/compression.py), the ratio from its
    configs/dgc/__init__.py.
    """
    codec = TopK(
        ratio=number_option("ratio", ratio, rule="a number above 0, at most 1", holds=lambda one: 0 < one <= 1),
        momentum=number_option("momentum", momentum, rule="a number of 0 or more below 1", holds=lambda m: 0 <= m < 1),
    )
    if codec.momentum and model.optimizer.state_slots:
        rule = "DGC's momentum takes the place of the optimizer's: SGD without momentum"
        raise DoesNotApplyError(f"{model.optimizer.name} keeps a state of its own", rule=rule)
    if codec.momentum and cluster.num_workers == 1:
        rule = "nothing is sent, so DGC's momentum would be lost, and the optimizer has none"
        raise DoesNotApplyError(f"{cluster.name} has one worker", rule=rule)
    if model.clip_norm is not None:
        rule = "DGC clips each worker's gradient before it adds it up; a task's clip_norm would clip what it sends"
        raise DoesNotApplyError(f"{model.name} clips its gradients", rule=rule)
    return _encoded(model, cluster, codec, lambda v: len(v.shape) > 1, "a variable of two axes or more")


def is_worth_factors(variable: Variable, *, rank: int, rate: float) -> bool:
    """Whether PowerSGD compresses a variable: by torch's `_should_compress`, and only if both sides exceed the rank."""
    if len(variable.shape) < 2:
        return False
    rows, columns = variable.shape[0], math.prod(variable.shape[1:])
    return rank < min(rows, columns) and (rows + columns) * rank * rate < rows * columns


def _cast(model: ModelSpec, cluster: ClusterSpec, codec: Cast) -> Strategy:
    why = "a cast makes numbers smaller: it needs a dense gradient of float32 or float64"
    return _encoded(model, cluster, codec, lambda v: v.dtype in ("float32", "float64"), why)


def _encoded(
    model: ModelSpec, cluster: ClusterSpec, codec: Codec, takes: Callable[[Variable], bool], why: str
) -> Strategy:
    """Return DDP's strategy with a codec for the variables that `takes` accepts.

    Raises DoesNotApplyError if there are none; `why` is the rule in the error.
    """
    if model.loss_scaling:
        rule = "loss scaling looks for infinities in what arrived, and a codec refuses to send any"
        raise DoesNotApplyError(f"{model.name} scales its loss", rule=rule)
    stock = ddp(model, cluster)
    messages = tuple(part for message in stock.messages for part in _split(message, model, codec, takes))
    if not any(message.codec for message in messages):
        raise DoesNotApplyError(f"{model.name} has no gradient that is encoded", rule=why)
    return replace(stock, messages=messages)


def _split(message: Message, model: ModelSpec, codec: Codec, takes: Callable[[Variable], bool]) -> Iterator[Message]:
    """Split a bucket into a message of the gradients that are encoded and a message of the others."""
    if not isinstance(message.synchroniser, AllReduce):
        yield message  # rows
        return
    encoded = tuple(name for name in message.parts if takes(model.variable(name)))
    others = tuple(name for name in message.parts if name not in encoded)
    if encoded:
        yield replace(message, parts=encoded, codec=codec)
    if others:
        yield replace(message, parts=others)
