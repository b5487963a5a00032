"""The compiled lowering: columns of strategies in, tables of plans out.

It sets up a template for each pair of synchroniser and codec when it first meets them. Compiled functions do the
rest: they make strategies canonical, cut them into slices, write the operations of templates, and make the gates.
The result equals `tables_of(lower(strategy, model, cluster))`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autosync.plan.compiled.closing import gates_of, given_of, users_of
from autosync.plan.compiled.data import NUM_LISTS, Integers, Plans, Slices, Templates
from autosync.plan.compiled.known import KnownTemplates, variables_of
from autosync.plan.compiled.laying import stamps_of
from autosync.plan.compiled.measuring import measure
from autosync.plan.compiled.slicing import slices_of
from autosync.plan.compiled.writing import operations_of
from autosync.plan.steps import Site
from autosync.plan.tables import Shape
from autosync.plan.templates import template_of
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.canonical import canonical_synchroniser
from autosync.strategy.codecs import Codec
from autosync.strategy.columns import Columns, Numbering
from autosync.strategy.representation import Strategy
from autosync.strategy.synchronisers.base import Synchroniser


class Lowering:
    """Lowers legal strategies of one model on one cluster.

    The numbers of templates, shapes and costs never change; new ones are added as strategies need them.
    """

    def __init__(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        self.numbering = Numbering(model)
        self.variables = variables_of(model)
        self._cluster = cluster
        self._has_norms = model.clip_norm is not None or model.loss_scaling
        self._site = Site(model, cluster)
        self._known = KnownTemplates(self._site)
        self._template_of: dict[tuple[Synchroniser, Codec | None], int] = {}
        # Indexed by the numbers of synchroniser and codec; -1 where the two were not met together.
        self._templates: Integers = np.full((0, 0), -1, dtype=np.int64)

    @property
    def templates(self) -> Templates:
        """The columns of all templates so far."""
        return self._known.columns()

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """All shapes so far, by number."""
        return self._known.shapes

    @property
    def costs(self) -> tuple[str, ...]:
        """All costs so far, by number."""
        return self._known.costs

    def encode(self, strategies: Sequence[Strategy]) -> Columns:
        """Return strategies as columns; raise KeyError if one names a variable or part that the model does not have."""
        return self.numbering.encode(strategies)

    def slices(self, columns: Columns) -> Slices:
        """Return strategies in canonical form, cut into slices; raise KeyError if one names an unknown node."""
        of_message, num_workers = self._templates_of(columns), self._site.num_workers
        templates = self._known.columns()
        found = slices_of(columns, of_message, templates, self.variables, num_workers)
        measure(found, templates, self.variables, num_workers)
        return found

    def lower(self, columns: Columns) -> Plans:
        """Lower strategies to plans. Pass a few hundred at a time: each plan may take hundreds of kilobytes."""
        slices = self.slices(columns)
        totals = self._totals(columns) if self._has_norms else np.zeros(0, dtype=np.int64)
        templates = self._known.columns()
        if self._has_norms:
            totals += len(templates.table) * NUM_LISTS
        stamps = stamps_of(slices, templates, totals, self._known.num_holders)
        operations, first_edge = operations_of(slices, templates, stamps)
        given = given_of(slices, templates, stamps, self.variables.table)
        gates, first_gate, first_gate_edge = gates_of(given)
        by_users, users_elements = users_of(given, has_norms=self._has_norms)
        return Plans(
            first_operation=stamps.first_operation,
            first_edge=first_edge,
            first_gate=first_gate,
            first_gate_edge=first_gate_edge,
            operations=operations,
            gates=gates,
            by_users=by_users,
            users_elements=users_elements,
        )

    def _templates_of(self, columns: Columns) -> Integers:
        """Return the template of each message."""
        numbering = self.numbering
        shape = (len(numbering.synchronisers), len(numbering.codecs))
        if self._templates.shape != shape:
            grown = np.full(shape, -1, dtype=np.int64)
            rows, columns_before = self._templates.shape
            grown[:rows, :columns_before] = self._templates
            self._templates = grown
        found = self._templates[columns.synchroniser, columns.codec]
        if len(found) and found.min() < 0:
            new = {(int(columns.synchroniser[one]), int(columns.codec[one])) for one in np.flatnonzero(found < 0)}
            for synchroniser, codec in sorted(new):
                template = self._template(numbering.synchronisers[synchroniser], numbering.codecs[codec])
                self._templates[synchroniser, codec] = template
            found = self._templates[columns.synchroniser, columns.codec]
        return found

    def _template(self, synchroniser: Synchroniser, codec: Codec | None) -> int:
        """Return the template of a message in canonical form; one worker sends nothing, so its codec is dropped."""
        key = canonical_synchroniser(synchroniser, self._cluster), codec if self._site.num_workers > 1 else None
        number = self._template_of.get(key)
        if number is None:
            number = self._template_of[key] = self._known.add(template_of(self._site, *key), key[0])
        return number

    def _totals(self, columns: Columns) -> Integers:
        """Return for each strategy the list of the transfer that adds up norms among all workers and its servers."""
        synchronisers = self.numbering.synchronisers
        servers = [synchroniser.served_by for synchroniser in synchronisers]
        if self._site.num_workers == 1:
            servers = [None] * len(servers)
        firsts = columns.first_message
        found = np.empty(len(columns.overlap), dtype=np.int64)
        for number in range(len(found)):
            used = np.unique(columns.synchroniser[firsts[number] : firsts[number + 1]]).tolist()
            names = [name for name in [servers[one] for one in used] if name is not None]
            found[number] = self._known.total(frozenset(names))
        return found
