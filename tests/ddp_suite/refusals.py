"""The refusals beside stock DDP's behaviour: the one table of the suite and of docs/ddp-behaviour.md.

A refusal that is in no row is counted as `unlisted`: it is to be mended, or to be listed with its reason.
"""

from dataclasses import dataclass

SERVER, SHARDS, FORWARD = "ps_load_balanced", "fsdp", "bytescheduler"
EVERYWHERE = ("ddp", "engine", SERVER, "sharded", SHARDS, FORWARD)
ENGINES = (SERVER, "sharded", SHARDS, FORWARD)
"""Strategies by which the engine updates."""
APART = (SERVER, "sharded", SHARDS)
"""Strategies by which no worker has the whole of the optimizer's state."""
ALL_FORWARD = (FORWARD,)
"""Strategies with overlap `forward`, whatever else they have."""

_PLACES = {
    EVERYWHERE: "everywhere",
    ENGINES: "where the engine updates",
    APART: "servers and shards",
    ALL_FORWARD: "overlap `forward`",
    ("ddp",): "torch's reducer",
    ("engine",): "where the user's optimizer updates",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Behaviours that some strategies refuse: what scripts do, words of the refusal, and the reason."""

    what: str
    strategies: tuple[str, ...]
    words: str
    reason: str
    behaviours: tuple[str, ...]

    @property
    def where(self) -> str:
        return _PLACES[self.strategies]


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        what="reads or changes `p.grad` between backward and step, or clips or scales without declaring it",
        strategies=APART,
        words="belongs to the engine until its update",
        reason="no rank holds the whole gradient; declare `clip_norm` and `loss_scaling` in the task",
        behaviours=(
            "adds_gradients_of_two_passes",
            "adds_noise",
            "centralises_gradients",
            "channels_last_strides_of_gradients",
            "clips_data_undeclared",
            "clips_each",
            "clips_some",
            "clips_the_largest",
            "clips_undeclared",
            "clips_values",
            "clips_values_declared",
            "divides_gradients",
            "divides_gradients_all_at_once",
            "gradients_are_the_average",
            "gradients_that_were_kept",
            "hook_before_step_changes_gradients_from_after",
            "hook_before_step_changes_gradients_from_before",
            "keeps_arrays_of_gradients",
            "keeps_gradients",
            "keeps_gradients_of_before",
            "keeps_views_of_gradients",
            "logs_the_norm",
            "logs_the_norm_of_data",
            "reads_clipped_gradients_after_the_step",
            "reads_gradients",
            "reads_gradients_after_a_step_that_changes_them",
            "reads_gradients_after_the_step",
            "reads_gradients_that_are_scaled_and_clipped",
            "reads_gradients_transposed",
            "scales_and_clips_undeclared",
            "scales_undeclared",
            "sharpness_aware",
            "the_model_changes_its_type",
            "unused_gradients_are_none_or_zero",
        ),
    ),
    Refusal(
        what="reads `p.grad` after a step that changes it, or where a variable may stay unused",
        strategies=ALL_FORWARD,
        words="belongs to the engine until its update",
        reason="the engine updates many small variables at once, and SGD with Nesterov momentum changes gradients then",
        behaviours=("reads_gradients_after_a_step_that_changes_them", "unused_gradients_are_none_or_zero"),
    ),
    Refusal(
        what="changes `p.grad` where the task declares `clip_norm` or `loss_scaling`",
        strategies=ALL_FORWARD,
        words="has changed the gradient of",
        reason="the plan's norm is that of the gradients as they came",
        behaviours=("clips_values_declared",),
    ),
    Refusal(
        what="clips by another norm than the task declares",
        strategies=ENGINES,
        words="by the task's clip_norm",
        reason="the engine clips by the declared norm",
        behaviours=("clips_another_norm",),
    ),
    Refusal(
        what="clips some gradients where the task declares clipping of all",
        strategies=ENGINES,
        words="the norm of some gradients without that of",
        reason="the plan computes one norm, of all gradients",
        behaviours=("clips_some_declared",),
    ),
    Refusal(
        what="clips its gradients together with those of other parameters, where the task declares clipping",
        strategies=ENGINES,
        words="together with that of others",
        reason="the plan computes the norm of the model's gradients",
        behaviours=("clips_with_others_declared",),
    ),
    Refusal(
        what="clips by a norm of another order than 2",
        strategies=ENGINES,
        words="the norm of order",
        reason="the plan computes the norm of order 2",
        behaviours=("clips_the_largest_declared",),
    ),
    Refusal(
        what="replaces `p.grad` by another tensor",
        strategies=APART,
        words="was replaced after backward",
        reason="the engine may already be sending the gradient",
        behaviours=("replaces_gradients",),
    ),
    Refusal(
        what="discards some gradients after backward and steps",
        strategies=ENGINES,
        words="was thrown away after backward",
        reason="the engine may already be sending the gradient",
        behaviours=("forgets_one_gradient", "gradients_freed_by_a_hook"),
    ),
    Refusal(
        what="sets gradients to zero after backward (`set_to_none=False`) and steps",
        strategies=ENGINES,
        words="was set to zero after backward",
        reason="momentum and decay would move parameters, but no rank has such a gradient",
        behaviours=("has_zeros_before_the_step",),
    ),
    Refusal(
        what="adds to existing gradients: no `zero_grad` after a step, or two backward passes outside of `no_sync`",
        strategies=ENGINES,
        words="was there already when a backward pass added to it",
        reason="no rank holds the whole existing gradient; accumulate under `no_sync`",
        behaviours=(
            "forward_within_no_sync_backward_outside",
            "gradients_in_a_flat_buffer",
            "never_zeroes",
            "no_sync_thrown_away",
            "skips_a_step",
            "two_losses_a_pass_each",
            "two_synchronised_backwards",
        ),
    ),
    Refusal(
        what="steps with gradients that were never synchronised",
        strategies=EVERYWHERE,
        words="without a synchronised backward pass before it",
        reason="ranks would diverge without notice",
        behaviours=("local_steps_between", "step_of_no_sync_alone", "two_losses_a_pass_each"),
    ),
    Refusal(
        what="steps twice with the same gradients",
        strategies=ENGINES,
        words="optimizer.step() was called without",
        reason="the engine uses the gradients of a backward pass once",
        behaviours=("step_twice",),
    ),
    Refusal(
        what="calls `step(closure)` of `LBFGS` or of a class outside `torch.optim`, or with other arguments",
        strategies=ENGINES,
        words="closure",
        reason="the engine must know when the gradients of a step are there",
        behaviours=("by_lbfgs", "step_with_an_argument"),
    ),
    Refusal(
        what="has an optimizer that updates all variables together",
        strategies=ALL_FORWARD,
        words="needs an optimizer that updates each variable by itself",
        reason="each message is updated when its transfer is done",
        behaviours=(
            "by_adaptive",
            "by_global_norm",
            "by_lbfgs",
            "by_steps_in_an_attribute",
            "by_subclass_that_counts",
            "by_subclass_that_decays",
            "by_subclass_with_a_new_key",
        ),
    ),
    Refusal(
        what="has an optimizer that is not elementwise",
        strategies=ENGINES,
        words="no elementwise optimizer",
        reason="a piece alone would get another update than within the whole",
        behaviours=(
            "by_a_class_of_the_script",
            "by_adafactor",
            "by_adaptive",
            "by_global_norm",
            "by_layerwise",
            "by_lbfgs",
            "by_marks_on_parameters",
            "by_steps_in_an_attribute",
            "by_subclass",
            "by_subclass_after_a_plain_one",
            "by_subclass_that_counts",
            "by_subclass_that_decays",
            "by_subclass_without_closure",
            "by_subclass_with_a_new_key",
            "step_with_an_argument",
        ),
    ),
    Refusal(
        what="trains variables by an optimizer that was not passed to `parallelize`",
        strategies=ENGINES,
        words="is in no optimizer that parallelize was given",
        reason="the engine would not update them; pass all: `parallelize(model, [first, second], …)`",
        behaviours=(
            "gan_in_one_model",
            "two_optimizers",
            "two_optimizers_in_turn",
            "two_optimizers_of_two_classes",
            "two_optimizers_second_first",
        ),
    ),
    Refusal(
        what="makes another optimizer after `parallelize` and steps it",
        strategies=ENGINES,
        words="parallelize was not given",
        reason="the engine knows only the passed optimizers; call `release` and `parallelize` again",
        behaviours=(
            "optimizer_in_backward",
            "optimizer_made_after_parallelize",
            "optimizer_made_anew",
            "two_optimizers_over_the_same",
        ),
    ),
    Refusal(
        what="steps optimizers within the backward pass, each when its gradient is there",
        strategies=("engine",),
        words="has dropped the gradient",
        reason="ranks would update with unsynchronised gradients, and differ; step after backward",
        behaviours=("optimizer_in_backward",),
    ),
    Refusal(
        what="steps several optimizers of one model in turn",
        strategies=ENGINES,
        words="before all optimizers of the model have stepped",
        reason="the engine updates when all of them have stepped",
        behaviours=("two_optimizers_given_in_turn",),
    ),
    Refusal(
        what="passes an optimizer of another class than the task's",
        strategies=ENGINES,
        words="; the bundle was made for",
        reason="the strategy was chosen for the task's optimizer",
        behaviours=("two_optimizers_of_two_classes_given",),
    ),
    Refusal(
        what="replaces a parameter (for example by weight norm) during training",
        strategies=EVERYWHERE,
        words="the model has another tensor for",
        reason="hooks are on the old tensor; stock DDP silently does not synchronise the new one",
        behaviours=("a_parametrization_is_added",),
    ),
    Refusal(
        what="reads `optimizer.state` or saves `optimizer.state_dict()` without `autosync.consolidate`",
        strategies=APART,
        words="is where it is updated, at a server or in shards",
        reason="no worker has the whole state",
        behaviours=(
            "optimizer_state_dict",
            "optimizer_state_read",
            "resumes",
            "state_is_scaled",
            "state_is_zeroed",
            "state_of_some_is_cleared",
            "state_of_some_is_dropped",
        ),
    ),
    Refusal(
        what="adds a parameter group during training",
        strategies=ENGINES,
        words="when training began, by which the engine updates",
        reason="the engine knows only the groups from the start; call `release` and `parallelize` again",
        behaviours=("adds_a_group",),
    ),
    Refusal(
        what="thaws a parameter that was frozen when the model was profiled",
        strategies=EVERYWHERE,
        words="is trainable now; in the bundle it is frozen",
        reason="the bundle has no plan for it; stock DDP silently leaves its gradient unsynchronised, unless it was "
        "frozen after the model was wrapped ([tuning](tune-script.md#limits) then goes on under stock DDP)",
        behaviours=("thaws_in_the_midst",),
    ),
    Refusal(
        what="continues after an error in backward among gradients",
        strategies=EVERYWHERE,
        words="backward",
        reason="some gradients are already being sent; call `release` and `parallelize` again",
        behaviours=("error_in_backward_among_gradients",),
    ),
    Refusal(
        what="uses torch's `Join` for ranks with fewer batches",
        strategies=EVERYWHERE,
        words="torch's Join over a parallelized model",
        reason="every rank takes part in every step; give all ranks equally many batches",
        behaviours=(
            "join_divided_by_those_left",
            "join_switched_off",
            "join_that_throws",
            "join_uneven_inputs",
            "join_where_inputs_are_even",
        ),
    ),
    Refusal(
        what="has a layer under two reentrant checkpoints",
        strategies=("ddp",),
        words="a gradient came twice in this backward pass",
        reason="torch's reducer takes a gradient once, as in stock DDP; our engine (`hand_off=False`) trains it",
        behaviours=(
            "checkpoint_reentrant_three_times",
            "checkpoint_reentrant_twice",
            "checkpoint_reentrant_twice_in_a_dataclass",
        ),
    ),
    Refusal(
        what="has other memory layouts on some ranks (`channels_last`)",
        strategies=("ddp",),
        words="has strides of parameters",
        reason="stock DDP refuses it too; our engine trains it",
        behaviours=("another_layout_on_one_rank_comes_out_right",),
    ),
    Refusal(
        what="changes memory layouts on some ranks alone during training",
        strategies=("ddp",),
        words="all ranks must change them before the same step",
        reason="torch's reducer would exchange elements of gradients; our engine trains it",
        behaviours=("another_layout_on_one_rank_during_training",),
    ),
    Refusal(
        what="changes the model's type or device during training",
        strategies=ENGINES,
        words="is to have another type or place",
        reason="the bundle fits the old one; call `release` and `parallelize` again",
        behaviours=("the_model_changes_its_type",),
    ),
    Refusal(
        what="parallelizes two models that share a parameter",
        strategies=ENGINES,
        words="belongs to another parallelized model too",
        reason="only one engine can update a parameter",
        behaviours=("two_models_share_a_layer",),
    ),
    Refusal(
        what="parallelizes two models with one optimizer",
        strategies=ENGINES,
        words="which its engine already updates",
        reason="each engine keeps the state of its optimizers",
        behaviours=("two_parallel_models_of_one_optimizer",),
    ),
    Refusal(
        what="parallelizes a model and a module within it",
        strategies=EVERYWHERE,
        words="is parallelized already",
        reason="each gradient would be synchronised twice",
        behaviours=("a_parallel_model_within_another",),
    ),
    Refusal(
        what="has complex parameters",
        strategies=EVERYWHERE,
        words="is of type complex",
        reason="`profile` refuses it: messages and codecs need real numbers (keep two real parameters)",
        behaviours=("complex_parameters", "complex_parameters_by_adam"),
    ),
)


def rows() -> list[str]:
    """The rows of the table in docs/ddp-behaviour.md."""
    return [f"| {one.what} | {one.where} | `{one.words}` | {one.reason} |" for one in REFUSALS]


_LIKE = {"door": "ddp", "door_forward": FORWARD, "unused": "ddp", "unused_forward": FORWARD}
_LIKE |= {"unused_servers": SERVER, "unused_sharded": SHARDS}
"""The strategies whose refusals other ways of training with them have."""


def is_listed(name: str, strategy: str, words: str) -> bool:
    strategy = _LIKE.get(strategy, strategy)
    return any(name in one.behaviours and strategy in one.strategies and one.words in words for one in REFUSALS)
