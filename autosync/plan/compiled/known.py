"""A model's variables and a cluster's templates as columns; templates are added when strategies first need them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from autosync.plan.compiled.data import (
    INT8,
    MEASURES,
    NEEDS_BYTES,
    NEEDS_MATRIX,
    NEEDS_ROWS,
    NO_CODEC,
    ONE,
    SIGN,
    TOP_K,
    WAITS,
    Integers,
    Templates,
    Variables,
)
from autosync.plan.steps import COLLECTED, NORM, Amount, LocalStep, Measure, Site, Step, Template, TransferStep, Wait
from autosync.plan.tables import COLLECTIVES, LOCAL_KINDS, Shape, algorithm_number
from autosync.plan.types import Groups
from autosync.specs.model import ITEM_BYTES, ModelSpec
from autosync.strategy.canonical import joins_parts
from autosync.strategy.codecs import Codec, Int8, Sign, TopK
from autosync.strategy.synchronisers.base import Synchroniser


def variables_of(model: ModelSpec) -> Variables:
    """Return the columns of a model's variables."""
    variables = model.variables
    uses = {use: number for number, use in enumerate(sorted({variable.use for variable in variables}))}
    shapes = [variable.shape or (1,) for variable in variables]
    table = [
        (
            variable.ready,
            uses[variable.use],
            ITEM_BYTES[variable.dtype],
            variable.num_elements,
            shape[0],
            shape[1] if len(shape) > 1 else 1,
            variable.max_touched_rows or 0,
            variable.factor_rows or 0,
        )
        for variable, shape in zip(variables, shapes, strict=True)
    ]
    return Variables(
        table=_integers(table),
        touched_rows=np.array([variable.touched_rows or 0.0 for variable in variables], dtype=np.float64),
        first_axis=_ends(map(len, shapes))[:-1],
        axis_size=_integers([size for shape in shapes for size in shape]),
    )


_List = tuple[tuple[Step, ...], tuple[Wait, ...]]


class KnownTemplates:
    """The templates met so far, with the shapes and costs of their operations; all have numbers that never change."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._shapes: dict[Shape, int] = {}
        self._costs: dict[str, int] = {}
        self._holders: dict[Groups, int] = {site.workers: 0}
        self._templates: list[tuple[Template, Synchroniser]] = []
        self._totals: dict[frozenset[str], int] = {}
        self._columns: Templates | None = None

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """All shapes so far, by number."""
        return tuple(self._shapes)

    @property
    def costs(self) -> tuple[str, ...]:
        """All costs so far, by number."""
        return tuple(self._costs)

    @property
    def num_holders(self) -> int:
        """The number of different groups of ranks that hold finished gradients."""
        return len(self._holders)

    def add(self, template: Template, synchroniser: Synchroniser) -> int:
        """Add the template of a canonical synchroniser and return its number."""
        self._templates.append((template, synchroniser))
        self._columns = None
        return len(self._templates) - 1

    def total(self, servers: frozenset[str]) -> int:
        """Return the number of the list that adds up norms of workers and servers; these lists follow the templates."""
        if servers not in self._totals:
            self._totals[servers] = len(self._totals)
            self._columns = None
        return self._totals[servers]

    def columns(self) -> Templates:
        """Return the tables of all templates so far; the lists of the transfers that add up norms come last."""
        if self._columns is None:
            self._columns = self._tabulated()
        return self._columns

    def _tabulated(self) -> Templates:
        lists = [one for template, _ in self._templates for one in _lists(template)]
        lists += [self._total(servers) for servers in self._totals]
        steps = [step for of_list, _ in lists for step in of_list]
        first_wait = _ends(len(step.waits) for step in steps).tolist()
        codecs = [_codec(template.codec) for template, _ in self._templates]
        rows = [self._row(*one, codec) for one, (codec, _) in zip(self._templates, codecs, strict=True)]
        columns = [(*self._step(step), wait) for step, wait in zip(steps, first_wait[:-1], strict=True)]
        return Templates(
            table=_integers(rows).reshape(len(rows), -1),
            codec_number=np.array([number for _, number in codecs], dtype=np.float64),
            lists=np.stack((_ends(len(one) for one, _ in lists), _ends(len(one) for _, one in lists)), axis=1),
            steps=_integers([*columns, (*[0] * 11, first_wait[-1])]),
            waits=_waits([wait for step in steps for wait in step.waits]),
            done=_waits([wait for _, of_list in lists for wait in of_list]),
        )

    def _row(self, template: Template, synchroniser: Synchroniser, codec: int) -> tuple[int, ...]:
        update = template.settle.once[0]
        # All workers hold shards, perhaps in another order.
        holders = self._site.workers if template.collect.sharded else template.collect.holders
        assert isinstance(update, LocalStep), "the first of what is done once is the update"
        return (
            template.settle.by_slice,
            joins_parts(synchroniser, template.codec),
            self._holders.setdefault(holders, len(self._holders)),
            holders == self._site.workers and not template.collect.sharded,
            synchroniser.trains_apart,
            not update.sharded and len(update.groups[0]) == self._site.num_workers,
            codec,
            _needs(template),
        )

    def _total(self, servers: frozenset[str]) -> _List:
        everyone = self._site.everyone(servers)
        return (TransferStep("all_reduce", "native", everyone, 1, (), (NORM,), _ONE, item_bytes=8),), ()

    def _step(self, step: Step) -> tuple[int, ...]:
        measure = ONE if step.amount is _ONE else MEASURES.index(step.amount.measure)
        size = (measure, step.amount.factor)
        if isinstance(step, LocalStep):
            cost = self._costs.setdefault(step.cost or step.kind, len(self._costs))
            shape = self._shape(Shape(None, None, step.groups, weights=step.weights))
            return (0, LOCAL_KINDS.index(step.kind), -1, shape, *size, -1, 0, step.every, cost, step.sharded)
        shape = self._shape(Shape(step.collective, step.algorithm, step.groups, step.within))
        kind, algorithm = COLLECTIVES.index(step.collective), algorithm_number(step.algorithm)
        return (1, kind, algorithm, shape, *size, step.item_bytes, step.stage, step.every, -1, 0)

    def _shape(self, shape: Shape) -> int:
        return self._shapes.setdefault(shape, len(self._shapes))


# The amount of a transfer that always has one element.
_ONE = Amount("elements", 1)

_NEEDS: Mapping[Measure, int] = {
    "elements": 0,
    "encoded_bytes": NEEDS_BYTES,
    "left_elements": NEEDS_MATRIX,
    "right_elements": NEEDS_MATRIX,
    "factor_elements": NEEDS_MATRIX,
    "rebuilt_elements": NEEDS_MATRIX,
}


def _lists(template: Template) -> list[_List]:
    """Return a template's lists of steps, each with the waits until the list is done."""
    collect, settle = template.collect, template.settle
    norm = LocalStep("norm", collect.holders, (), (), (COLLECTED, NORM), sharded=collect.sharded)
    norm = norm._replace(weights=collect.weights)
    return [
        (collect.steps, collect.finished),
        (settle.once, settle.done),
        (settle.each, settle.each_done),
        ((norm,), ()),
        ((norm._replace(sharded=True),), ()),
    ]


def _needs(template: Template) -> int:
    needs = 0
    for step in (*template.collect.steps, *template.settle.once, *template.settle.each):
        needs |= _NEEDS.get(step.amount.measure, NEEDS_ROWS)
    return needs


def _codec(codec: Codec | None) -> tuple[int, float]:
    match codec:
        case Int8():
            return INT8, float(codec.block)
        case TopK():
            return TOP_K, codec.ratio
        case Sign():
            return SIGN, 0.0
    return NO_CODEC, 0.0


def _waits(waits: Sequence[Wait]) -> Integers:
    return _integers([(WAITS.index(wait.on), wait.step, wait.lag) for wait in waits]).reshape(len(waits), 3)


def _ends(lengths: Iterable[int]) -> Integers:
    """Return where rows of these lengths begin, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(list(lengths)))).astype(np.int64)


def _integers(rows: Sequence[int] | Sequence[tuple[int, ...]]) -> Integers:
    return np.array(rows, dtype=np.int64)
