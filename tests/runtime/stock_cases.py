"""What each rank of `stock_ranks.py` does: every case returns an answer for `test_stock.py`."""

import copy
import datetime as dt
import gc
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from stock_comparison import averaged, compared, differing, far, gradients, layouts, lots, own, reducing, stock_of
from stock_models import MODELS, made
from torch import Tensor, nn

from autosync.right_of_way import marks
from autosync.runtime.stock.reducer import StockReducer, as_process_group

CASES: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


@case
def conv_is_that_of_ddp() -> dict[str, Any]:
    return compared("conv")


@case
def tied_transformer_is_that_of_ddp() -> dict[str, Any]:
    return compared("tied")


@case
def accumulated_is_that_of_ddp() -> list[dict[str, Any]]:
    return [compared(name, microsteps=3) for name in MODELS]


def _everything_in_two(model: nn.Module) -> list[list[int]]:
    count = len(list(model.parameters()))
    return [list(range(count - 1, count // 2, -1)), list(range(count // 2, -1, -1))]


@case
def without_sync_nothing_is_sent() -> list[str]:
    model, loss = made("tied")
    expected = own(model, loss, 5)
    told: list[bool] = []
    with reducing(
        model, _everything_in_two(model), backward_ended=lambda *, synchronised: told.append(synchronised)
    ) as reducer:
        reducer.syncs = False
        # One rank goes backward oftener: whoever sent something would wait for the others.
        for _ in range(1 + dist.get_rank()):
            model.zero_grad()
            loss(model, lots(5)).backward()
        assert told == [False] * (1 + dist.get_rank())
        return differing(gradients(model), expected)


@case
def reads_see_that_buckets_travel() -> list[str]:
    model, loss = made("conv")
    seen: list[bool] = []
    first = next(iter(model.parameters()))
    with reducing(model, _everything_in_two(model)) as reducer:
        hook = first.register_post_accumulate_grad_hook(lambda _: seen.append(marks().messages_travel))
        for syncs in (True, False):
            reducer.syncs = syncs
            seen.append(marks().messages_travel)
            loss(model, lots(5)).backward()
            seen.append(marks().messages_travel)
        hook.remove()
    return [] if seen == [False, True, False, False, False, False] else [str(seen)]


@case
def evaluation_changes_nothing() -> list[str]:
    """Forward passes under no_grad, other numbers of them on each rank, before a step and between its halves."""
    model, loss = made("tied")
    expected = averaged(own(model, loss, 6))
    with reducing(model, _everything_in_two(model)):
        for _ in range(2):
            model.zero_grad()
            for _ in range(dist.get_rank()):
                with torch.no_grad():
                    loss(model, lots(7))
            value = loss(model, lots(6))
            with torch.no_grad():
                loss(model, lots(8))
            value.backward()
        return far(gradients(model), expected)


@case
def several_forwards_before_one_backward() -> list[str]:
    model, loss = made("tied")
    first, second = own(model, loss, 6), own(model, loss, 7)
    expected = averaged({name: first[name] + second[name] for name in first})
    with reducing(model, _everything_in_two(model)):
        (loss(model, lots(6)) + loss(model, lots(7))).backward()
        return far(gradients(model), expected)


@case
def backward_again_is_synchronised() -> list[str]:
    """Two backward passes over one graph, and one whose forward was without sync: averages add up."""
    model, loss = made("conv")
    expected = {name: 3 * value for name, value in averaged(own(model, loss, 6)).items()}
    told: list[bool] = []
    with reducing(
        model, [[4, 3], [2, 1, 0]], backward_ended=lambda *, synchronised: told.append(synchronised)
    ) as reducer:
        value = loss(model, lots(6))
        value.backward(retain_graph=True)
        value.backward()
        reducer.syncs = False
        value = loss(model, lots(6))
        reducer.syncs = True
        value.backward()
    return far(gradients(model), expected) + ([] if told == [True] * 3 else [f"told {told}"])


@case
def penalties_apart_are_synchronised() -> list[str]:
    """Backward passes that reach one parameter alone, the first of the first bucket or the last of the last."""
    model, loss = made("conv")
    expected = averaged(own(model, loss, 6))
    found = []
    for name, parameter in (("last.bias", model.last.bias), ("first.weight", model.first.weight)):
        with reducing(model, [[4, 3], [2, 1, 0]]):
            model.zero_grad()
            loss(model, lots(6)).backward()
            (2.0 * dist.get_rank() * parameter).sum().backward()
        # The mean of 0, 2, 4 … is the number of ranks less one.
        more = {name: expected[name] + dist.get_world_size() - 1}
        found += far(gradients(model), {**expected, **more})
    return found


@case
def sums_of_float16_do_not_overflow() -> list[float]:
    """A pass that the Reducer was prepared for, and one that it was not."""
    model = nn.Linear(1, 1, bias=False).half()
    found = []
    with reducing(model, [[0]]) as reducer:
        for syncs in (True, False):
            model.zero_grad()
            reducer.syncs = syncs
            loss = model(torch.full((1, 1), 40_000.0).half()).sum()
            reducer.syncs = True
            loss.backward()
            found += [float(one) for one in gradients(model).values() if one != 40_000]
    return found


@case
def end_of_backward_is_told_with_final_gradients() -> list[str]:
    model, loss = made("tied")
    seen: list[dict[str, Tensor]] = []
    with reducing(
        model, _everything_in_two(model), backward_ended=lambda *, synchronised: seen.append(gradients(model))
    ):
        loss(model, lots(9)).backward()
        assert len(seen) == 1
        return differing(seen[0], gradients(model))


@case
def reentrant_checkpoint() -> list[str]:
    """Parts of the backward pass end within it: the whole is told once, at its own end."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = model, nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.utils.checkpoint.checkpoint(self.inner, x.requires_grad_(), use_reentrant=True)
            y: Tensor = self.last(hidden)
            return y

    torch.manual_seed(1)
    whole = Checkpointed()

    def loss(one: nn.Module, generator: torch.Generator) -> Tensor:
        value: Tensor = one(torch.randn(3, 4, generator=generator)).square().mean()
        return value

    expected = averaged(own(whole, loss, 2))
    told: list[bool] = []
    # The inner backward pass gives the gradients of one of the two variables that tell, the outer those of the other.
    with reducing(
        whole, [[2, 0], [3, 1], [4, 5]], backward_ended=lambda *, synchronised: told.append(synchronised)
    ) as reducer:
        loss(whole, lots(2)).backward()
        reducer.check()
    return far(gradients(whole), expected) + ([] if told == [True] else [f"told {told}"])


@case
def unused_parameters_count_as_zero() -> list[Any]:
    """A layer is left out by one rank, by all, by none: what gradient it has, and what is told of each pass."""
    model = nn.ModuleDict({"first": nn.Linear(2, 2), "second": nn.Linear(2, 2), "third": nn.Linear(2, 1)})

    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.skips = model, False

        def forward(self, x: Tensor) -> Tensor:
            x = self.layers["first"](x)
            x = x if self.skips else self.layers["second"](x)
            y: Tensor = self.layers["third"](x)
            return y

    whole = Skips()
    weight = cast("nn.Linear", model["second"]).weight
    told: list[bool] = []
    found: list[Any] = []
    with reducing(
        whole, [[5, 4], [3, 2], [1, 0]], backward_ended=lambda *, synchronised: told.append(synchronised)
    ) as reducer:
        for skips in (dist.get_rank() == 0, True, False):
            whole.skips = skips
            whole.zero_grad()
            whole(torch.ones(1, 2)).sum().backward()
            reducer.check()
            found.append(None if weight.grad is None else bool(weight.grad.any()))
    return [*found, told]


@case
def unused_parameters_in_debug() -> list[Any]:
    """torch's reducer then names parameters that got no gradient, before it numbers them."""
    dist.set_debug_level(dist.DebugLevel.INFO)
    try:
        return unused_parameters_count_as_zero()
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)


@case
def closed_is_free() -> dict[str, Any]:
    """After close a backward pass sends nothing, the C++ Reducer is gone, and the model has no hooks."""
    model, loss = made("tied")
    expected = own(model, loss, 4)
    group: Any = dist.group.WORLD
    stock = stock_of(model, _everything_in_two(model))
    parameters = dict(model.named_parameters())
    reducer = StockReducer(model, parameters, stock, group, layouts(parameters))
    loss(model, lots(4)).backward()
    was_synchronised = bool(differing(gradients(model), expected))
    inner = weakref.ref(reducer._reducer)
    reducer.close()
    is_freed_at_once = inner() is None
    # One rank goes backward oftener: whoever sent something would wait for the others.
    for _ in range(1 + dist.get_rank()):
        model.zero_grad()
        loss(model, lots(4)).backward()
    hooks = [*model._forward_hooks, *(h for p in model.parameters() for h in (p._post_accumulate_grad_hooks or ()))]
    outer = weakref.ref(reducer)
    del reducer
    gc.collect()
    return {
        "was_synchronised": was_synchronised,
        "freed": is_freed_at_once,
        "gone": outer() is None,
        "hooks": len(hooks),
        "differing": differing(gradients(model), expected),
    }


@case
def copies_are_ordinary() -> list[str]:
    """A copy of a model in training is trained apart, on each rank for itself."""
    model, loss = made("tied")
    expected = own(model, loss, 4)
    with reducing(model, _everything_in_two(model)) as reducer:
        loss(model, lots(3)).backward()
        twin = copy.deepcopy(model)
        for _ in range(1 + dist.get_rank()):
            twin.zero_grad()
            loss(twin, lots(4)).backward()
        assert not reducer._is_prepared, "a forward pass of the copy is none of the model"
        return differing(gradients(twin), expected)


@case
def one_after_another() -> list[str]:
    """New buckets for a model that had others."""
    model, loss = made("tied")
    expected = averaged(own(model, loss, 4))
    found = []
    count = len(list(model.parameters()))
    for buckets in (_everything_in_two(model), [[i] for i in range(count)], [list(range(count))]):
        with reducing(model, buckets):
            model.zero_grad()
            loss(model, lots(4)).backward()
            found += far(gradients(model), expected)
    return found


@case
def buckets_are_those_given() -> list[list[list[int]]]:
    """The positions of each bucket's parameters in the model, in the order of launch: given, and found after a step."""
    given = [[4, 3], [2], [1, 0]]
    model, loss = made("conv")
    numbers = {id(parameter): number for number, parameter in enumerate(model.parameters())}
    with reducing(model, given) as reducer:
        loss(model, lots(1)).backward()
        loss(model, lots(2)).backward()
        buckets = reducer._reducer._get_zeros_like_grad_buckets()
        used = [[numbers[id(parameter)] for parameter in bucket.parameters()] for bucket in buckets]
    return [given, used]


@case
def nothing_piles_up() -> int:
    """Bytes by which this process grows in a step of 300 parameters (noting each would take 4,800)."""
    model = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(300))

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.numbers = model

        def forward(self) -> Tensor:
            return torch.cat(list(self.numbers)).sum()

    whole = Sum()
    with reducing(whole, [list(range(299, -1, -1))]):
        sizes = []
        for _ in range(2):
            for _ in range(200):
                whole.zero_grad()
                whole().backward()
            sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    return (sizes[1] - sizes[0]) // 200


@case
def own_connections_do() -> list[str]:
    """Connections that were made directly serve as a group."""
    everyone: Any = dist.group.WORLD
    base: Any = dist.distributed_c10d._get_default_store()
    store = dist.PrefixStore("own", base)  # type: ignore[attr-defined]
    gloo: Any = dist.ProcessGroupGloo
    made_directly = gloo(store, everyone.rank(), everyone.size(), dt.timedelta(seconds=30))
    model, loss = made("tied")
    expected = averaged(own(model, loss, 4))
    stock = stock_of(model, _everything_in_two(model))
    parameters = dict(model.named_parameters())
    reducer = StockReducer(model, parameters, stock, as_process_group(made_directly, store), layouts(parameters))
    loss(model, lots(4)).backward()
    reducer.close()
    return far(gradients(model), expected)
