"""Manifests are valid for the models of the client libraries, which must be installed for these tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosync.launchers import manifests
from autosync.specs.cluster import ClusterSpec
from tests.helpers.kubernetes_clusters import ALIKE, CLUSTER, OPTIONS, check_manifest

pytestmark = pytest.mark.services


@pytest.mark.parametrize("cluster", [CLUSTER, replace(CLUSTER, kubernetes=replace(OPTIONS, pinned=True))])
def test_jobs_and_services_are_what_the_kubernetes_client_knows(cluster: ClusterSpec) -> None:
    models = pytest.importorskip("kubernetes.client", reason="the Kubernetes client is not installed")
    for manifest in manifests.manifests(cluster):
        model = getattr(models, {"Job": "V1Job", "Service": "V1Service"}[manifest["kind"]])
        check_manifest(manifest, model, manifest["kind"])


def test_train_jobs_are_what_kubeflow_knows() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="kubeflow-trainer-api is not installed")
    (manifest,) = manifests.manifests(ALIKE)
    check_manifest(manifest, models.TrainerV1alpha1TrainJob, "TrainJob")


def test_the_check_against_models_finds_what_is_wrong() -> None:
    models = pytest.importorskip("kubernetes.client", reason="the Kubernetes client is not installed")
    job, *_ = manifests.manifests(CLUSTER)
    spelled = {**job, "spec": {**job["spec"], "completionmode": "Indexed"}}
    with pytest.raises(AssertionError, match=r"Job\.spec\.completionmode"):
        check_manifest(spelled, models.V1Job, "Job")
    with pytest.raises(ValueError, match=r"backoff_?[lL]imit"):
        check_manifest({**job, "spec": {**job["spec"], "backoffLimit": "none"}}, models.V1Job, "Job")
