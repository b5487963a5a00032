"""Late updates take the settings of their own steps, and the script keeps its own settings."""

import torch
from torch import nn

from autosync.runtime.stages.late_settings import LateSettings


def test_each_update_has_the_settings_of_its_own_step() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    settings = LateSettings(optimizer)
    for batch, rate in enumerate((1.0, 0.5, 0.25)):
        optimizer.param_groups[0]["lr"] = rate
        settings.note(batch)
    taken = []
    for batch in range(3):
        weight.grad = torch.full((1,), -1.0)
        before = weight.item()
        with settings.of(batch):
            optimizer.step()
        taken.append(weight.item() - before)
        assert optimizer.param_groups[0]["lr"] == 0.25
    assert taken == [1.0, 0.5, 0.25]


def test_a_tensor_that_a_script_changes_in_place_is_noted_as_it_is() -> None:
    rate = torch.tensor(1.0)
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=rate)
    settings = LateSettings(optimizer)
    settings.note(0)
    rate.fill_(0.5)
    with settings.of(0):
        assert optimizer.param_groups[0]["lr"] == 1.0
    assert optimizer.param_groups[0]["lr"] is rate


class _Counting(torch.optim.SGD):
    """An optimizer that counts its updates among its settings."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.param_groups[0]["count"] = self.param_groups[0].get("count", 0) + 1
        super().step(closure)


def test_what_the_optimizer_itself_counts_goes_on() -> None:
    optimizer = _Counting([nn.Parameter(torch.zeros(1))], lr=1.0)
    settings = LateSettings(optimizer)
    for batch in range(3):
        settings.note(batch)
        if batch:
            with settings.of(batch - 1):
                optimizer.step()
    assert optimizer.param_groups[0]["count"] == 2
    with settings.of(2):
        optimizer.step()
    assert optimizer.param_groups[0]["count"] == 3
