"""A prediction of scaling for programs: `--json`."""

from __future__ import annotations

from typing import Any

from autosync.scaling.knee import LITTLE, Knee
from autosync.scaling.prediction import Forecast, Outlook, ScalingPrediction, SizePrediction
from autosync.strategy.files import dump_strategy


def fields(found: ScalingPrediction) -> dict[str, Any]:
    """Return the prediction as plain values."""
    price = found.price
    return {
        "schema": "autosync.scaling/1",
        "model": found.model,
        "cluster": found.cluster,
        "measured_nodes": found.measured_nodes,
        "probed": found.is_probed,
        "batch_size": found.batch_size,
        "price": None if price is None else {"per_hour": price.per_hour, "currency": price.currency},
        "interval": 0.9,
        "sizes": [_size(size) for size in found.sizes],
        "knee": {"stock_ddp": _knee(found.stock_knee), "best": _knee(found.best_knee)},
        "assumptions": list(found.assumptions),
        "warnings": list(found.warnings),
    }


def _size(size: SizePrediction) -> dict[str, Any]:
    return {
        "nodes": size.num_nodes,
        "ranks": size.num_ranks,
        "priced_nodes": size.num_priced,
        "beyond_measured": list(size.beyond),
        "gain": size.gain,
        "stock_ddp": _outlook(size.stock),
        "best": {**_outlook(size.best), "strategy": _strategy(size.best)},
    }


def _outlook(outlook: Outlook) -> dict[str, Any]:
    return {
        "name": outlook.name,
        "simulator": outlook.simulator,
        "step_seconds": _forecast(outlook.step_seconds),
        "samples_per_second": _forecast(outlook.samples_per_second),
        "efficiency": _forecast(outlook.efficiency),
        "cost_per_million_samples": None if outlook.cost is None else _forecast(outlook.cost),
        "bottleneck": {
            "kind": outlook.bottleneck.kind,
            "compute_share": outlook.bottleneck.compute_share,
            "exposed_share": outlook.bottleneck.exposed_share,
            "link": outlook.bottleneck.link,
            "link_share": outlook.bottleneck.link_share,
        },
    }


def _strategy(outlook: Outlook) -> dict[str, Any] | None:
    return None if outlook.strategy is None or outlook.name == "stock DDP" else dump_strategy(outlook.strategy)


def _forecast(forecast: Forecast) -> dict[str, float | None]:
    return {"value": forecast.value, "low": forecast.low, "high": forecast.high}


def _knee(knee: Knee | None) -> dict[str, Any] | None:
    if knee is None:
        return None
    return {
        "nodes": knee.num_nodes,
        "between_sizes": knee.is_between,
        "most_nodes": knee.most_nodes,
        "least_gain": LITTLE,
        "in_words": str(knee),
    }
