"""What `mutations.py` breaks: a snippet of the product's code, what takes its place, and the tests that should notice.

`scripts` are those of tests/runtime/test_expectations.py, each of which runs in every way of training that it has a row
for; `tests` are other tests.
"""

from __future__ import annotations

from dataclasses import dataclass

_EXPECTATIONS = "tests/runtime/test_expectations.py"
_NO_COMPARISON = f"{_EXPECTATIONS}::test_what_is_no_comparison"
_GROUPS = f"{_EXPECTATIONS}::test_groups_of_a_larger_world"
_SERVED = "tests/runtime/test_served_scripts.py"
_USES = "tests/runtime/test_uses.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """`file` is within the package; `name` says in words what goes wrong."""

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
        file="runtime/session.py",
        snippet="            if not self.syncs:\n                self._seals.refuse_lifted()",
        replacement="            if False:\n                self._seals.refuse_lifted()",
        scripts=("accumulates",),
    ),
    Mutation(
        feature="accumulation",
        name="the reducer synchronises under no_sync too",
        file="runtime/stock.py",
        snippet="        if self.syncs and torch.is_grad_enabled():",
        replacement="        if torch.is_grad_enabled():",
        scripts=("accumulates",),
    ),
    Mutation(
        feature="clipping",
        name="updates do not clip",
        file="runtime/locals.py",
        snippet="        return unscales_by * clip_coefficient(sum_of_squares, clip_norm)",
        replacement="        return unscales_by",
        scripts=("clips",),
    ),
    Mutation(
        feature="clipping",
        name="the norm is that of the last gradients alone",
        file="runtime/locals.py",
        snippet="self._memory.view(operation.outputs, iteration).add_(norm",
        replacement="self._memory.view(operation.outputs, iteration).copy_(norm",
        scripts=("clips",),
    ),
    Mutation(
        feature="clipping",
        name="clipping that is not declared is passed over",
        file="runtime/sealed.py",
        snippet="(declared.clips and name in _NORMS | _MULTIPLIES)",
        replacement="(name in _NORMS | _MULTIPLIES)",
        scripts=("clips",),
    ),
    Mutation(
        feature="clipping",
        name="the script's own norm is not compared with the task's",
        file="runtime/declared.py",
        snippet="not math.isclose(coefficient, expected, rel_tol=_TOLERANCE)",
        replacement="coefficient > 1.0",
        scripts=("clips_otherwise",),
    ),
    Mutation(
        feature="autocast",
        name="the pass that is watched is not under autocast",
        file="runtime/uses.py",
        snippet="        return function(*arguments, **options)",
        replacement="""\
        with torch.autocast("cpu", enabled=False):
            return function(*arguments, **options)""",
        scripts=("autocasts",),
    ),
    Mutation(
        feature="GradScaler",
        name="the scaler does not hear of an overflow",
        file="runtime/declared.py",
        snippet="        found_inf.fill_(1.0)",
        replacement="        found_inf.fill_(0.0)",
        scripts=("scales",),
    ),
    Mutation(
        feature="GradScaler",
        name="a step that is left out updates",
        file="runtime/engine_optimizer.py",
        snippet="        if step.scale.is_skipped:",
        replacement="        if False:",
        scripts=("scales",),
    ),
    Mutation(
        feature="GradScaler",
        name="gradients stay scaled",
        file="runtime/engine_optimizer.py",
        snippet="self._source.options.of(iteration).scale.inverse",
        replacement="1.0",
        scripts=("scales",),
    ),
    Mutation(
        feature="GradScaler",
        name="what a fused optimizer is given is not seen",
        file="runtime/declared.py",
        snippet='        scale = getattr(self._optimizer, "grad_scale", None)',
        replacement="        scale = None",
        scripts=("scales",),
    ),
    Mutation(
        feature="GradScaler",
        name="servers do not hear of the scale",
        file="runtime/serve.py",
        snippet="optimizer.options.put(engine.iteration, step.groups, step.scale)",
        replacement="optimizer.options.put(engine.iteration, step.groups)",
        tests=(_SERVED,),
    ),
    Mutation(
        feature="GradScaler",
        name="the norm that clips is that of scaled gradients",
        file="runtime/locals.py",
        snippet="(norm,), iteration)) * unscales_by**2",
        replacement="(norm,), iteration))",
        scripts=("scales_and_clips",),
    ),
    Mutation(
        feature="parameter groups and schedulers",
        name="all parameters have the options of the first group",
        file="runtime/engine_optimizer.py",
        snippet="            ours.update(options[group])",
        replacement="            ours.update(options[0])",
        scripts=("schedules",),
    ),
    Mutation(
        feature="parameter groups and schedulers",
        name="options stay those of the beginning",
        file="runtime/engine_optimizer.py",
        snippet="self.options.put(iteration, options_of(self.users), scale)",
        replacement="self.options.put(iteration, self.groups, scale)",
        scripts=("schedules",),
    ),
    Mutation(
        feature="frozen and unused parameters",
        name="unused parameters are waited for",
        file="runtime/agreement.py",
        snippet="    return {variable.name: found[variable.name] for variable in bundle.model.variables}",
        replacement="    return {name: one for name, one in found.items() if one.requires_grad}",
        scripts=("plain",),
    ),
    Mutation(
        feature="frozen and unused parameters",
        name="a frozen parameter may thaw",
        file="runtime/expected.py",
        snippet="            if parameter.requires_grad:",
        replacement="            if False:",
        scripts=("thaws",),
    ),
    Mutation(
        feature="tied weights",
        name="a weight's second name is another parameter",
        file="runtime/agreement.py",
        snippet="    found = dict(model.named_parameters())\n    for difference",
        replacement="    found = dict(model.named_parameters(remove_duplicate=False))\n    for difference",
        scripts=("plain",),
    ),
    Mutation(
        feature="tied weights",
        name="a use outside of the owner does not wait",
        file="runtime/uses.py",
        snippet="n for n in self._all if n in owned | used and not",
        replacement="n for n in self._all if n in owned and n not in used and not",
        scripts=("plain",),
        tests=(_USES,),
    ),
    Mutation(
        feature="modules called twice",
        name="they are taken for layers with one pair of factors",
        file="specs/profile_spec.py",
        snippet="if len(calls) != 1 or uses is None or len(uses.operations) != 1:",
        replacement="if not calls:",
        scripts=("plain",),
    ),
    Mutation(
        feature="several forwards before a backward",
        name="the reducer takes a second one for an error",
        file="runtime/stock.py",
        snippet="            self.check()\n            self._reducer.prepare_for_backward([])",
        replacement="            assert not self._is_prepared\n            self._reducer.prepare_for_backward([])",
        scripts=("several_forwards",),
    ),
    Mutation(
        feature="several forwards before a backward",
        name="the engine takes a second one for an error",
        file="runtime/passes.py",
        snippet="""\
            for tensor in _tensors(outputs):
                if tensor.requires_grad:
                    tensor.register_hook(self._reached)  # type: ignore[no-untyped-call]

    def _reached(self, _: torch.Tensor) -> None:
        # One that failed had no end: the next one has another number.
        if torch._C._current_graph_task_id() != self._under_way:  # noqa: SLF001 - torch has no other way to ask
            self._begin()

    def _begin(self) -> None:
""",
        replacement="""\
            assert not self.__dict__.get("is_awaited")
            self.is_awaited = True
            for tensor in _tensors(outputs):
                if tensor.requires_grad:
                    tensor.register_hook(self._reached)

    def _reached(self, _: torch.Tensor) -> None:
        if torch._C._current_graph_task_id() != self._under_way:
            self._begin()

    def _begin(self) -> None:
        self.is_awaited = False
""",
        scripts=("several_forwards",),
    ),
    Mutation(
        feature="buffers",
        name="they are each rank's own",
        file="runtime/buffers.py",
        snippet="        if self._are_due and model.training",
        replacement="        if False and model.training",
        scripts=("buffers", "buffers_of_all"),
    ),
    Mutation(
        feature="buffers",
        name="they are sent after accumulation too",
        file="runtime/buffers.py",
        snippet="            self._are_due = self._syncs()",
        replacement="            self._are_due = True",
        scripts=("buffers", "buffers_of_all"),
    ),
    Mutation(
        feature="torch.compile",
        name="the wrapper is taken for the model",
        file="runtime/parallelize.py",
        snippet='    return getattr(model, "_orig_mod", model)',
        replacement="    return model",
        scripts=("compiled_model_is_given",),
    ),
    Mutation(
        feature="torch.compile",
        name="what is compiled waits for no updates",
        file="runtime/uses.py",
        snippet="        if self._has_compiled:\n            seen.clear()",
        replacement="        if self._has_compiled:\n            seen.update(self._all)",
        scripts=("compiled_before", "compiled_after"),
    ),
    Mutation(
        feature="checkpointing of activations",
        name="a pass within a pass is the outermost",
        file="runtime/passes.py",
        snippet="        if self._under_way is None:\n            self._begin()",
        replacement="        if self._under_way != torch._C._current_graph_task_id():\n            self._begin()",
        scripts=("checkpoints", "checkpoints_reentrant"),
    ),
    Mutation(
        feature="uneven batches",
        name="the average is off by half a percent",
        file="runtime/locals.py",
        snippet="self._memory.view(operation.inputs, iteration)).div_(self._plan.num_workers)",
        replacement="self._memory.view(operation.inputs, iteration)).div_(self._plan.num_workers + 0.01)",
        scripts=("uneven",),
    ),
    Mutation(
        feature="state_dict",
        name="it does not wait for updates",
        file="runtime/hooks.py",
        snippet="        module.register_state_dict_pre_hook(Hook(lambda *_: drain())),",
        replacement="        module.register_state_dict_pre_hook(Hook(lambda *_: None)),",
        scripts=("state_dict_is_bare", "state_dict_of_layers"),
    ),
    Mutation(
        feature="EMA by drain",
        name="drain does not wait",
        file="runtime/session.py",
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
        file="runtime/start.py",
        snippet="    name = session_name(dist.get_process_group_ranks(group))",
        replacement="    name = session_name([0, 1])",
        tests=(_GROUPS,),
    ),
    Mutation(
        feature="a clear repr",
        name="it does not say who updates",
        file="runtime/session.py",
        snippet='        return described(self._plan, "autosync\'s engine", [updates], self._buffers)',
        replacement='        return described(self._plan, "autosync\'s engine", [], self._buffers)',
        tests=(_NO_COMPARISON,),
    ),
    Mutation(
        feature="a clear repr",
        name="a session is an object at an address",
        file="runtime/session.py",
        snippet="    def __repr__(self) -> str:",
        replacement="    def in_words(self) -> str:",
        tests=(_NO_COMPARISON,),
    ),
)
