"""What is observed of a script's first steps is what the profile of its task says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autosync.errors import OperationError
from autosync.script.observing import Observation
from autosync.script.script_facts import OBSERVED_STEPS, ScriptFacts


# In the first steps of "mixed_precision", a scaler skips updates.
@pytest.mark.parametrize("script", ["plain", "sparse", "mixed_precision"])
def test_the_model_spec_is_that_of_the_task(ranks: Any, compare: Any, model_spec: Any, script: str) -> None:
    outcome, seen = ranks.observe(script, 5)
    assert outcome.codes == (0, 0), outcome.logs
    task = model_spec(script)
    for one in seen:
        assert one["reasons"] == []
        model = one["model"]
        found = {variable["name"]: variable for variable in model["variables"]}
        assert list(found) == [variable.name for variable in task.variables]
        for variable in task.variables:
            seen_variable = found[variable.name]
            assert seen_variable["shape"] == list(variable.shape)
            assert (seen_variable["use"], seen_variable["ready"]) == (variable.use, variable.ready), variable.name
        assert model["optimizer"]["name"] == task.optimizer.name
        assert model.get("accumulation_steps", 1) == 1
        assert all(segment["seconds"] > 0 for segment in model["timeline"]["backward"][:1])
    # The script itself is not changed.
    stock = ranks.run(script, None)
    for expected, saved in zip(stock.saved, outcome.saved, strict=True):
        compare(saved, expected, script, 0.0)


def _observed_inside(num_losses: int) -> ScriptFacts:
    """Observe steps that are made inside the forward pass, as Lightning's manual optimization makes them."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen, inputs = Observation(model), torch.ones(4, 2)
    seen.begin()
    for _ in range(OBSERVED_STEPS):
        seen.forward_begins([inputs])
        for _ in range(num_losses):
            loss = model(inputs).sum()
            seen.backward_begins(loss)
            loss.backward()
        seen.update_begins(optimizer, [])
        optimizer.step()
        seen.update_ends(optimizer)
        seen.forward_ends(torch.zeros(()))
        seen.step_ends()
    seen.end()
    return seen.facts("script", [optimizer])


def test_a_backward_pass_inside_the_forward_pass_ends_it() -> None:
    facts = _observed_inside(1)
    found = [(one.name, one.use) for one in facts.model.variables]
    assert found == [("0.weight", 0), ("0.bias", 0), ("1.weight", 1), ("1.bias", 1)]
    assert facts.model.batch_size == 4


def test_several_backward_passes_inside_the_forward_pass_are_refused() -> None:
    with pytest.raises(OperationError, match="several backward passes inside a forward pass"):
        _observed_inside(2)
