"""Clusters of pods for the tests of the Kubernetes launcher, and a check of manifests against client models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.launch_options import KubernetesOptions

_node = partial(Node, bandwidth_out=1e8, bandwidth_in=1e8)
OPTIONS = KubernetesOptions(
    image="registry.example/train:1",
    namespace="ml",
    container={
        "workingDir": "/work",
        "resources": {"limits": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": 2}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    },
    pod={"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
)
CLUSTER = ClusterSpec(
    name="My lab",
    nodes=(
        _node(name="a", host="a", devices=2),
        _node(name="s", host="s", role="server", devices=0),
        _node(name="b", host="b", devices=2),
    ),
    launcher="kubernetes",
    kubernetes=OPTIONS,
)
ALIKE = replace(
    CLUSTER,
    nodes=(CLUSTER.nodes[0], CLUSTER.nodes[2]),
    kubernetes=KubernetesOptions(
        image="registry.example/train:1",
        namespace="ml",
        kind="trainjob",
        pinned=True,
        container={key: OPTIONS.container[key] for key in ("resources", "volumeMounts")},
        pod=OPTIONS.pod,
    ),
)


def check_manifest(value: Mapping[str, Any], model: Any, path: str) -> None:
    """A manifest is valid for a model of pydantic's, and has no field that the model would silently leave out."""
    _no_strangers(value, model, path)
    assert model.from_dict(dict(value)).to_dict() is not None


def _no_strangers(value: Any, model: Any, path: str) -> None:
    if isinstance(value, list):
        for place, item in enumerate(value):
            _no_strangers(item, model, f"{path}[{place}]")
    elif isinstance(value, Mapping) and hasattr(model, "model_fields"):
        fields = {
            field.serialization_alias or field.alias or name: field.annotation
            for name, field in model.model_fields.items()
        }
        for key, item in value.items():
            assert key in fields, f"{path}.{key}"
            _no_strangers(item, _model_in(fields[key]), f"{path}.{key}")


def _model_in(annotation: Any) -> Any:
    """The model in `Optional[List[Model]]`, if there is one."""
    if hasattr(annotation, "model_fields"):
        return annotation
    # A mapping's values may have any names.
    if getattr(annotation, "__origin__", None) is dict:
        return None
    return next((found for inner in get_args(annotation) if (found := _model_in(inner)) is not None), None)
