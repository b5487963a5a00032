"""The mutations of `mutations.py`: a snippet of the product's code, its replacement, and the tests that should notice.

`scripts` are scripts of tests/runtime/test_expectations.py. Each runs in every way of training for which it has a row.
`tests` are other tests.
"""

from __future__ import annotations

from dataclasses import dataclass

_EXPECTATIONS = "tests/runtime/test_expectations.py"
_NO_COMPARISON = f"{_EXPECTATIONS}::test_what_is_no_comparison"
_GROUPS = f"{_EXPECTATIONS}::test_groups_of_a_larger_world"
_SERVED = "tests/runtime/test_served_scripts.py"
_AWAITED = "tests/runtime/test_awaited.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """`file` is a path within the package. `name` describes the fault in words."""

    feature: str
    name: str
    file: str
    snippet: str
    replacement: str
    scripts: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()


MUTATIONS = (
    Mutation(
        feature="accumulation",
        name="the engine synchronises under no_sync too",
        file="runtime/session/backward.py",
        snippet="        if not (self.syncs if self._forward_syncs is None else self._forward_syncs):",
        replacement="        if False:",
        scripts=("accumulates",),
    ),
    Mutation(
        feature="accumulation",
        name="the reducer synchronises under no_sync too",
        file="runtime/stock/reducer.py",
        snippet="            if self.syncs:\n                self.prepare()",
        replacement="            self.prepare()",
        scripts=("accumulates",),
    ),
    Mutation(
        feature="clipping",
        name="updates do not clip",
        file="runtime/local/operations.py",
        snippet="        return scale.inverse * clip_coefficient(sum_of_squares, clip_norm)",
        replacement="        return scale.inverse",
        scripts=("clips",),
    ),
    Mutation(
        feature="clipping",
        name="the norm is that of the last gradients alone",
        file="runtime/local/operations.py",
        snippet="self._memory.view(operation.outputs, iteration).add_(sum_of",
        replacement="self._memory.view(operation.outputs, iteration).copy_(sum_of",
        scripts=("clips",),
    ),
    Mutation(
        feature="clipping",
        name="clipping that is not declared is passed over",
        file="runtime/session/sealed_gradients.py",
        snippet="(declared.clips and name in _NORMS | _MULTIPLIES)",
        replacement="(name in _NORMS | _MULTIPLIES)",
        scripts=("clips",),
    ),
    Mutation(
        feature="clipping",
        name="the script's own norm is not compared with the task's",
        file="runtime/session/clipping_and_scaling.py",
        snippet="not math.isclose(coefficient, expected, rel_tol=_TOLERANCE)",
        replacement="coefficient > 1.0",
        scripts=("clips_otherwise",),
    ),
    Mutation(
        feature="GradScaler",
        name="the scaler does not hear of an overflow",
        file="runtime/session/clipping_and_scaling.py",
        snippet="        found_inf.fill_(1.0)",
        replacement="        found_inf.fill_(0.0)",
        scripts=("scales",),
    ),
    Mutation(
        feature="GradScaler",
        name="a step that is left out updates",
        file="runtime/local/engine_update.py",
        snippet="        if step.scale.is_skipped:",
        replacement="        if False:",
        scripts=("scales",),
    ),
    Mutation(
        feature="GradScaler",
        name="gradients stay scaled",
        file="runtime/local/engine_update.py",
        snippet="self._source.options.of(iteration).scale\n",
        replacement="self._source.options.of(iteration).scale._replace(inverse=1.0)\n",
        scripts=("scales",),
    ),
    Mutation(
        feature="GradScaler",
        name="what a fused optimizer is given is not seen",
        file="runtime/session/clipping_and_scaling.py",
        snippet='        scale = getattr(self._optimizer, "grad_scale", None)',
        replacement="        scale = None",
        scripts=("scales",),
    ),
    Mutation(
        feature="GradScaler",
        name="servers do not hear of the scale",
        file="runtime/serving/serve.py",
        snippet="optimizer.options.put(engine.iteration, step.groups, step.scale)",
        replacement="optimizer.options.put(engine.iteration, step.groups)",
        tests=(_SERVED,),
    ),
    Mutation(
        feature="GradScaler",
        name="the norm that clips is that of scaled gradients",
        file="runtime/local/operations.py",
        snippet="(norm,), iteration)) * scale.inverse**2",
        replacement="(norm,), iteration))",
        scripts=("scales_and_clips",),
    ),
    Mutation(
        feature="parameter groups and schedulers",
        name="all parameters have the options of the first group",
        file="runtime/local/engine_update.py",
        snippet="            ours.update(options[group])",
        replacement="            ours.update(options[0])",
        scripts=("schedules",),
    ),
    Mutation(
        feature="parameter groups and schedulers",
        name="options stay those of the beginning",
        file="runtime/local/engine_optimizer.py",
        snippet="self.options.put(iteration, options_of(self.users) if groups is None else groups, scale)",
        replacement="self.options.put(iteration, self.groups, scale)",
        scripts=("schedules",),
    ),
    Mutation(
        feature="frozen and unused parameters",
        name="unused parameters are waited for",
        file="runtime/session/agreement.py",
        snippet="    return {variable.name: found[variable.name] for variable in bundle.model.variables}",
        replacement="    return {name: one for name, one in found.items() if one.requires_grad}",
        scripts=("plain",),
    ),
    Mutation(
        feature="frozen and unused parameters",
        name="a frozen parameter may thaw",
        file="runtime/session/unchanged_training.py",
        snippet="            if parameter.requires_grad:",
        replacement="            if False:",
        scripts=("thaws",),
    ),
    Mutation(
        feature="tied weights",
        name="a weight's second name is another parameter",
        file="runtime/session/agreement.py",
        snippet="    found = dict(model.named_parameters())\n    for difference",
        replacement="    found = dict(model.named_parameters(remove_duplicate=False))\n    for difference",
        scripts=("plain",),
    ),
    Mutation(
        feature="tied weights",
        name="a use outside of the owner does not wait",
        file="runtime/session/pending_parameters.py",
        snippet="                one.settle((number,))\n                found = True",
        replacement="                found = True",
        scripts=("plain",),
        tests=(_AWAITED,),
    ),
    Mutation(
        feature="modules called twice",
        name="they are taken for layers with one pair of factors",
        file="specs/profile/assemble.py",
        snippet="if len(calls) != 1 or uses is None or len(uses.operations) != 1:",
        replacement="if not calls:",
        scripts=("plain",),
    ),
    Mutation(
        feature="several forwards before a backward",
        name="the reducer takes a second one for an error",
        file="runtime/stock/reducer.py",
        snippet="        self.check()\n        if self._layouts.have_changed():",
        replacement="        assert not self._is_prepared\n        if self._layouts.have_changed():",
        scripts=("several_forwards",),
    ),
    Mutation(
        feature="several forwards before a backward",
        name="the engine takes a second one for an error",
        file="runtime/session/backward.py",
        snippet="            self._forward_syncs = self.syncs or bool(self._forward_syncs)",
        replacement="            assert self._forward_syncs is None\n            self._forward_syncs = self.syncs",
        scripts=("several_forwards",),
    ),
    Mutation(
        feature="buffers",
        name="they are each rank's own",
        file="runtime/session/model_buffers.py",
        snippet="        if self._are_due and model.training",
        replacement="        if False and model.training",
        scripts=("buffers", "buffers_of_all"),
    ),
    Mutation(
        feature="buffers",
        name="they are sent after accumulation too",
        file="runtime/session/model_buffers.py",
        snippet="            self._are_due = self._syncs()",
        replacement="            self._are_due = True",
        scripts=("buffers", "buffers_of_all"),
    ),
    Mutation(
        feature="torch.compile",
        name="the wrapper is taken for the model",
        file="runtime/parallelize.py",
        snippet='    bare: torch.nn.Module = getattr(model, "_orig_mod", model)',
        replacement="    bare: torch.nn.Module = model",
        scripts=("compiled_model_is_given",),
    ),
    Mutation(
        feature="torch.compile",
        name="what is compiled waits for no updates",
        file="runtime/session/pending_parameters.py",
        snippet="        if self._is_compiled:\n            shared = range(len(self._parameters))",
        replacement="        if self._is_compiled:\n            return",
        scripts=("compiled_before", "compiled_after"),
    ),
    Mutation(
        feature="checkpointing of activations",
        name="a pass within a pass is the outermost",
        file="runtime/session/backward_passes.py",
        snippet="        is_within = torch._C._current_graph_task_id() != -1",
        replacement="        is_within = False",
        scripts=("checkpoints", "checkpoints_reentrant"),
    ),
    Mutation(
        feature="uneven batches",
        name="the average is off by half a percent",
        file="runtime/local/operations.py",
        snippet="self._memory.view(operation.inputs, iteration)).div_(self._plan.num_workers)",
        replacement="self._memory.view(operation.inputs, iteration)).div_(self._plan.num_workers + 0.01)",
        scripts=("uneven",),
    ),
    Mutation(
        feature="state_dict",
        name="it does not wait for updates",
        file="runtime/session/pending_parameters.py",
        snippet=(
            "        if not _settle_among((*arguments, *options.values())):\n"
            "            # The parameter is in a container of a kind that we do not know.\n"
            "            _settle_all()\n"
            "        return function(*arguments, **options)"
        ),
        replacement=(
            "        with torch._C.DisableTorchFunctionSubclass():\n            return function(*arguments, **options)"
        ),
        scripts=("state_dict_is_bare", "state_dict_of_layers"),
    ),
    Mutation(
        feature="EMA by drain",
        name="drain does not wait",
        file="runtime/session/engine_step.py",
        snippet="        self._engine.wait_done(iterations_back=1)",
        replacement="        return",
        scripts=("averages",),
    ),
    Mutation(
        feature="a process group that is not the world",
        name="the group is passed over",
        file="runtime/parallelize.py",
        snippet="    group = process_group or (",
        replacement="    group = (",
        tests=(_GROUPS,),
    ),
    Mutation(
        feature="a process group that is not the world",
        name="two groups meet at one place",
        file="runtime/session/start.py",
        snippet="    name = session_name(dist.get_process_group_ranks(group))",
        replacement="    name = session_name([0, 1])",
        tests=(_GROUPS,),
    ),
    Mutation(
        feature="a clear repr",
        name="it does not say who updates",
        file="runtime/session/session.py",
        snippet="        notes = [updates]",
        replacement="        notes: list[str] = []",
        tests=(_NO_COMPARISON,),
    ),
    Mutation(
        feature="a clear repr",
        name="a session is an object at an address",
        file="runtime/session/session.py",
        snippet="    def __repr__(self) -> str:",
        replacement="    def in_words(self) -> str:",
        tests=(_NO_COMPARISON,),
    ),
)
