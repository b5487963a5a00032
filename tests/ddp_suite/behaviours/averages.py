"""Averages of models that scripts keep beside the model: moving, stochastic, exchanged with it."""

import copy

import torch
from environment import Env, Values, adamw, behaviour, momentum, task
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn


@behaviour
def averaged_model(e: Env) -> Values:
    """torch's own average, updated after each step without a word to anybody."""
    run = e.start(task(optimizer=adamw))
    average = AveragedModel(run.model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for _ in range(5):
        run.step()
        average.update_parameters(run.model)
    return {f"average {k}": v.clone() for k, v in average.module.state_dict().items()} | run.values()


@behaviour
def averaged_model_made_before(e: Env) -> Values:
    run = e.run(task(optimizer=adamw))
    run.start()
    average = AveragedModel(run.model)
    for _ in range(5):
        run.step()
        average.update_parameters(run.called.module if e.is_stock else run.model)
    return {f"average {k}": v.clone() for k, v in average.module.state_dict().items()}


@behaviour
def moving_average_by_hand(e: Env) -> Values:
    """As scripts write it: `zip(ema.parameters(), model.parameters())`."""
    run = e.start(task(optimizer=momentum))
    average = copy.deepcopy(run.model)
    for _ in range(5):
        run.step()
        with torch.no_grad():
            for mean, p in zip(average.parameters(), run.model.parameters(), strict=True):
                mean.mul_(0.7).add_(p, alpha=0.3)
    return {f"average {k}": v.clone() for k, v in average.state_dict().items()}


@behaviour
def moving_average_of_data(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    average = [p.data.clone() for p in run.parameters()]
    for _ in range(5):
        run.step()
        torch._foreach_lerp_(average, [p.data for p in run.parameters()], 0.3)
    return {str(k): v for k, v in enumerate(average)}


@behaviour
def moving_average_of_state_dicts(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    average = {k: v.clone() for k, v in run.model.state_dict().items()}
    for _ in range(5):
        run.step()
        for k, v in run.model.state_dict().items():
            average[k].lerp_(v, 0.3)
    return average


@behaviour
def stochastic_weight_averaging(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    average, scheduler = AveragedModel(run.model), SWALR(run.optimizer, swa_lr=0.01, anneal_epochs=2)
    for number in range(6):
        run.step()
        if number > 1:
            average.update_parameters(run.model)
            scheduler.step()
    run.model.load_state_dict(average.module.state_dict())
    run.steps(2)
    return run.values()


@behaviour
def exchanges_average_and_model(e: Env) -> Values:
    """Evaluates with the average, and then puts the model's own parameters back."""
    run = e.start(task(optimizer=momentum))
    average = copy.deepcopy(run.model)
    seen = []
    for _ in range(4):
        run.step()
        with torch.no_grad():
            for mean, p in zip(average.parameters(), run.model.parameters(), strict=True):
                mean.lerp_(p, 0.3)
            kept = [p.clone() for p in run.parameters()]
            for mean, p in zip(average.parameters(), run.model.parameters(), strict=True):
                p.copy_(mean)
            seen.append(run.model(torch.ones(2, 5, dtype=torch.float64)).clone())
            for one, p in zip(kept, run.parameters(), strict=True):
                p.copy_(one)
    return {"seen": seen, **run.values()}
