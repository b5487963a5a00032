"""The parts of a record besides the outcome: the facts of a plan, and the specs of model and cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from autosync import documents, jsonio
from autosync.datasets.schema import PlanFacts
from autosync.documents import Document
from autosync.plan.expansion import expand
from autosync.plan.traffic import Traffic, amortised_traffic
from autosync.plan.types import Plan, Transfer
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import dump_cluster, parse_cluster
from autosync.specs.model import SCHEMA_KIND as MODEL_KIND
from autosync.specs.model import SCHEMA_VERSION as MODEL_VERSION
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import dump_model

SpecKind = Literal["model", "cluster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A model spec or a cluster spec in a store: the fields of its file, and their hash.

    The fingerprint covers only what plans depend on, so specs that differ in their times have the same fingerprint.
    """

    kind: SpecKind
    spec_id: str
    fingerprint: str
    name: str
    fields: Mapping[str, Any]


def model_spec(model: ModelSpec) -> Spec:
    """Return a model as a store keeps it."""
    fields = dump_model(model)
    return Spec(
        kind="model",
        spec_id=jsonio.content_hash(fields),
        fingerprint=model.fingerprint(),
        name=model.name,
        fields=fields,
    )


def cluster_spec(cluster: ClusterSpec) -> Spec:
    """Return a cluster as a store keeps it."""
    fields = dump_cluster(cluster)
    return Spec(
        kind="cluster",
        spec_id=jsonio.content_hash(fields),
        fingerprint=cluster.fingerprint(),
        name=cluster.name,
        fields=fields,
    )


def plan_facts(plan: Plan, cluster: ClusterSpec) -> PlanFacts:
    """Return the facts of a plan: its size, and its cost in an average step."""
    transfers = [operation for operation in plan.operations if isinstance(operation, Transfer)]
    traffic = amortised_traffic(plan, cluster)
    return PlanFacts(
        num_messages=len(plan.messages),
        num_transfers=len(transfers),
        num_locals=len(plan.operations) - len(transfers),
        num_lanes=plan.num_lanes,
        num_sends=_num_sends(transfers),
        num_native_sends=_num_sends(transfer for transfer in transfers if transfer.algorithm == "native"),
        sent_bytes=float(traffic.node_out.sum()),
        wire_seconds=_wire_seconds(traffic, cluster),
    )


def _num_sends(transfers: Iterable[Transfer]) -> float:
    return sum(
        (
            len(expand(transfer.collective, transfer.algorithm, len(group))) / transfer.every
            for transfer in transfers
            for group in transfer.groups
        ),
        start=0.0,
    )


def _wire_seconds(traffic: Traffic, cluster: ClusterSpec) -> float:
    """Return how long the busiest interface or uplink needs for its bytes."""
    rates = [
        *(node.bandwidth_out for node in cluster.nodes),
        *(node.bandwidth_in for node in cluster.nodes),
        *(rack.uplink_out for rack in cluster.racks),
        *(rack.uplink_in for rack in cluster.racks),
    ]
    num_bytes = np.concatenate((traffic.node_out, traffic.node_in, traffic.rack_out, traffic.rack_in))
    return float(np.max(num_bytes / np.array(rates)))


def model_of_spec(spec: Spec, *, file: str = "") -> ModelSpec:
    """Return the model in a spec's fields."""
    document = Document(file=file, value=dict(spec.fields), lines={})
    return documents.parse(document, kind=MODEL_KIND, version=MODEL_VERSION, into=ModelSpec)


def cluster_of_spec(spec: Spec, *, file: str = "") -> ClusterSpec:
    """Return the cluster in a spec's fields."""
    return parse_cluster(Document(file=file, value=dict(spec.fields), lines={}))
