"""The state of the user's optimizer where the engine updates: outdated values are never shown as current ones.

For a variable that is updated whole, the engine works with the entry of `optimizer.state` itself. For all others (in
parts, slices or shards, or at a server) it has pieces. So the state of a variable is either *home*, in
`optimizer.state`, or *away*, in pieces. It leaves at a step: its entry is removed, and the pieces start from the
entry's values. Access to `optimizer.state` between two steps waits for the updates under way, and brings home the state
of which this worker has all pieces. State that is home may be changed in place, replaced, cleared and loaded: the next
step continues from it. If no worker has all pieces, access is refused until `autosync.consolidate` has brought them
home; only clearing the whole state is always allowed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.runtime.local.joint_optimizer import members_of, owners_of

Entry = dict[str, Any]


class GuardedState(defaultdict[Any, Any]):
    """`optimizer.state` of an optimizer whose parameters the engine updates.

    `look` is called before the state is read or changed, with the parameter if only one is concerned; `clear_all` is
    called before the whole state is cleared. A copy of it is a `defaultdict` of dicts, as in torch.
    """

    def __init__(self, content: Mapping[Any, Any], look: Callable[[Any], None], clear_all: Callable[[], None]) -> None:
        super().__init__(dict, content)
        self._look = look
        self._clear_all = clear_all

    def __getitem__(self, key: Any) -> Any:
        self._look(key)
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._look(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        self._look(key)
        super().__delitem__(key)

    def __contains__(self, key: object) -> bool:
        self._look(key)
        return super().__contains__(key)

    def __iter__(self) -> Iterator[Any]:
        self._look(None)
        return super().__iter__()

    def __len__(self) -> int:
        self._look(None)
        return super().__len__()

    def __eq__(self, other: object) -> bool:
        self._look(None)
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def get(self, key: Any, default: Any = None) -> Any:
        self._look(key)
        return super().get(key, default)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        self._look(key)
        return super().setdefault(key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        self._look(key)
        return super().pop(key, *default)

    def popitem(self) -> Any:
        self._look(None)
        return super().popitem()

    def keys(self) -> Any:
        self._look(None)
        return super().keys()

    def values(self) -> Any:
        self._look(None)
        return super().values()

    def items(self) -> Any:
        self._look(None)
        return super().items()

    def update(self, *others: Any, **more: Any) -> None:
        self._look(None)
        super().update(*others, **more)

    def clear(self) -> None:
        self._clear_all()
        super().clear()

    def copy(self) -> Any:
        self._look(None)
        return plain(self)

    __copy__ = copy

    def __reduce__(self) -> Any:
        self._look(None)
        return defaultdict, (dict,), None, None, iter(list(dict.items(self)))

    def __repr__(self) -> str:
        return f"<the optimizer's state of {dict.__len__(self)} parameters; the engine has that of others>"


def plain(state: Mapping[Any, Any]) -> defaultdict[Any, Any]:
    """Return a state in torch's own form, with the same entries, without calling its guard."""
    return defaultdict(dict, dict.items(state) if isinstance(state, GuardedState) else state)


def entry_of(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> Any:
    """Return an optimizer's entry for a parameter, or None, without calling its guard."""
    for member in members_of(optimizer):
        entry = dict.get(member.state, parameter)
        if entry is not None:
            return entry
    return None


class Entries:
    """The entries of the user's optimizer, which the engine's updates read and write while the user does not.

    Each `follow` looks up the mappings that hold them, unless a `Keeper` does so (`is_kept`).
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.is_kept = False
        self._owners = owners_of(optimizer)
        self._members = members_of(optimizer)
        self._states: dict[int, Any] = {}
        self.number = 0
        """A number that changes whenever the mappings do."""
        self.take()

    def take(self) -> None:
        """Use the mappings that the optimizer has now."""
        self._states = {id(member): member.state for member in self._members}
        self.number += 1

    def follow(self) -> int:
        """Use the optimizer's current mappings if they have been replaced, and return `number`."""
        if not self.is_kept and any(self._states[id(member)] is not member.state for member in self._members):
            self.take()
        return self.number

    def get(self, parameter: torch.Tensor) -> Any:
        return dict.get(self._of(parameter), parameter)

    def put(self, parameter: torch.Tensor, entry: Entry) -> None:
        dict.__setitem__(self._of(parameter), parameter, entry)

    def drop(self, parameter: torch.Tensor) -> None:
        dict.pop(self._of(parameter), parameter, None)

    def _of(self, parameter: torch.Tensor) -> Any:
        return self._states[id(self._owners[id(parameter)])]


class Keeper:
    """Knows whether the state of each of the engine's variables is home, as the module explains, and guards it.

    `parameters` are those that the engine updates and the optimizer holds. No worker has all pieces of those in
    `apart`. `drain` waits for updates under way. `reload` starts the engine's pieces of some variables from the state
    that is home; `bring` does the opposite, as far as this worker has all pieces. `drop` removes the entries of some
    variables, except those that the engine itself works with. `serve` sends the state that is home to the servers.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        entries: Entries,
        parameters: Mapping[str, torch.nn.Parameter],
        *,
        apart: Collection[str],
        drain: Callable[[], None],
        reload: Callable[[Collection[str]], None],
        bring: Callable[[], None],
        drop: Callable[[Iterable[str]], None],
        serve: Callable[[], None] | None,
    ) -> None:
        self._members = members_of(optimizer)
        self._entries = entries
        self._parameters = parameters
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._apart = frozenset(apart) & parameters.keys()
        self._drain = drain
        self._reload = reload
        self._bring = bring
        self._drop = drop
        self._serve = serve
        self._home = set(parameters)
        self.in_step = False
        """Whether the code that reads the state is an optimizer's own step."""
        self._versions: dict[int, tuple[str, int]] | None = None
        entries.is_kept = True
        self._guards: list[GuardedState] = []
        self._guard_all()

    # Called for actions of the script.

    def look(self, key: Any = None) -> None:
        """Prepare for a read or change of one parameter's state, or of all state: bring it home, or refuse."""
        if self.in_step:
            return
        name = None if key is None else self._names.get(id(key))
        if key is not None and (name is None or name in self._home):
            return
        missing = self._parameters.keys() - self._home
        if not missing:
            return
        away = (missing & self._apart) if name is None else ({name} & self._apart)
        if away:
            raise OperationError(
                f"the optimizer's state of {min(away)} is where it is updated, at a server or in shards "
                "(autosync.consolidate(model) on all workers brings it here; autosync.save(model, PATH) saves it from "
                "where it is)"
            )
        self._drain()
        self._bring()
        self._home |= missing - self._apart

    def clear_all(self) -> None:
        """Prepare for the clearing of the whole state: it is then home, and empty."""
        if len(self._members) > 1:
            self.look()
        self._drain()
        self._home.update(self._parameters)
        self._versions = None

    def loaded(self) -> None:
        """Accept another state that the script has given the optimizer."""
        self._drain()
        self._guard_all()
        self._home.update(self._parameters)
        self._versions = None

    def came_home(self, *, alone: bool) -> None:
        """Note that `consolidate` has brought all state home. `alone`: only this worker has it, and only to read."""
        self._home.update(self._parameters)
        self._versions = None
        if alone:
            tensors = [
                (name, value)
                for name in self._apart
                for value in (self._entries.get(self._parameters[name]) or {}).values()
                if isinstance(value, torch.Tensor)
            ]
            self._versions = {id(value): (name, value._version) for name, value in tensors}  # noqa: SLF001 - torch's own count of changes

    # Called by the session.

    def backward_begins(self) -> None:
        """Send new state to the servers, which must have it before gradients arrive."""
        if self._serve is not None:
            self._leave()

    def step_begins(self) -> None:
        """Begin the optimizer's step: from here on the engine continues from the state that is home."""
        self._look_for_others()
        if self._serve is not None and self._home:
            raise OperationError(
                "optimizer.state was loaded, cleared or replaced between backward and optimizer.step(): servers go on "
                "from another state before they get gradients (do it after the step, or before backward)"
            )
        self._leave()

    def settle(self) -> None:
        """Between two steps, copy the state that is home into the engine's pieces. It stays home as well."""
        self._look_for_others()
        if self._home:
            self._drain()
            self._refuse_changes()
            self._reload(self._home)
            if self._serve is not None and self._apart <= self._home:
                self._serve()

    def end(self) -> None:
        """Bring home the state that can be brought, and give the optimizer an ordinary state again."""
        if self._home:
            self._reload(self._home)
        self._bring()
        for member, guard in zip(self._members, self._guards, strict=True):
            if member.state is guard:
                member.state = plain(guard)
        self._entries.take()
        self._entries.is_kept = False

    def _guard_all(self) -> None:
        self._guards = []
        for member in self._members:
            guard = GuardedState(plain(member.state), self.look, self.clear_all)
            member.state = guard
            self._guards.append(guard)
        self._entries.take()

    def _look_for_others(self) -> None:
        """Continue with another mapping if the script has replaced that of the optimizer."""
        if any(member.state is not guard for member, guard in zip(self._members, self._guards, strict=True)):
            if not all(member.state is not guard for member, guard in zip(self._members, self._guards, strict=True)):
                self.look()
            self.loaded()

    def _leave(self) -> None:
        self._look_for_others()
        if not self._home:
            return
        self._drain()
        self._refuse_changes()
        self._reload(self._home)
        if self._serve is not None:
            self._serve()
        self._drop(self._home)
        self._home.clear()
        self._versions = None

    def _refuse_changes(self) -> None:
        """Refuse changes of state that only this worker has, because it was brought here for reading."""
        if self._versions is None:
            return
        for name in self._apart:
            entry = self._entries.get(self._parameters[name]) or {}
            for value in entry.values():
                if isinstance(value, torch.Tensor) and self._versions.get(id(value)) != (name, value._version):  # noqa: SLF001 - torch's own count of changes
                    raise OperationError(
                        f"the optimizer's state of {name} was changed after autosync.consolidate(model, to=…) had "
                        "brought it to this worker alone (consolidate(model) brings it to all, and all change it)"
                    )
