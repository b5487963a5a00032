"""The bytes of a plan's messages, if those of variables that no rank uses do not travel. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping

from autosync.plan.traffic import Traffic, amortised_traffic
from autosync.plan.types import Plan, Transfer
from autosync.runtime.varying.may_stay import may_stay
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.specs.use_sample import UseSample


def expected_traffic(plan: Plan, model: ModelSpec, cluster: ClusterSpec) -> Traffic:
    """Return the mean bytes of a step on each link; for a model without a sample of uses, as planned."""
    if model.use_sample is None:
        return amortised_traffic(plan, cluster)
    return amortised_traffic(plan, cluster, travelled=travelled_shares(plan, model.use_sample))


def travelled_shares(plan: Plan, sample: UseSample) -> Mapping[int, float]:
    """Return the expected share of each transfer's bytes that travels, by the transfer's position in the plan."""
    facts = may_stay(plan)
    travels = {
        name: sample.share(facts.closed([name]), plan.num_workers) for name in sample.names.intersection(facts.names)
    }
    found: dict[int, float] = {}
    for position, operation in enumerate(plan.operations):
        if not isinstance(operation, Transfer):
            continue
        regions = [plan.regions[index] for index in operation.regions]
        sizes = [region.num_elements for region in regions]
        shares = [
            travels.get(plan.parts[region.part].variable.name, 1.0) if region.part >= 0 else 1.0 for region in regions
        ]
        if any(share != 1.0 for share in shares):
            found[position] = sum(size * share for size, share in zip(sizes, shares, strict=True)) / sum(sizes)
    return found
