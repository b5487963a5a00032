"""The states of all ranks, joined into whole variables, so that other numbers of ranks and other plans can resume."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from autosync.errors import OperationError
from autosync.runtime.checkpoints.rank_state import Elements, grown, is_words, parse_name, parse_words
from autosync.runtime.memory.kept_state import Path, Place, joined

_OPTIMIZER = "optimizer "


class Source(Protocol):
    """The named tensors of one rank, in a file or in memory."""

    def keys(self) -> Iterable[str]: ...
    def get_tensor(self, name: str) -> torch.Tensor: ...


class Sent:
    """A `Source` of tensors in memory, received from a rank."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def keys(self) -> Iterable[str]:
        return self._tensors.keys()

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]


class _Piece(NamedTuple):
    source: int
    place: Place
    name: str


class Collected:
    """The states of several ranks. `sources` are in the ranks' order."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._elements: dict[tuple[str, str], list[_Piece]] = {}
        self._optimizer_keys: dict[str, dict[str, None]] = {}
        self._others: list[_Others] = []
        self._words: list[dict[str, dict[str, Any]]] = []
        for number, source in enumerate(sources):
            names: dict[Path, str] = {}
            for name in source.keys():  # noqa: SIM118 - a source is no mapping
                parsed = parse_name(name)
                if isinstance(parsed, Elements):
                    piece = _Piece(number, parsed.place, name)
                    self._elements.setdefault((parsed.what, parsed.place.variable), []).append(piece)
                    if parsed.what.startswith(_OPTIMIZER):
                        keys = self._optimizer_keys.setdefault(parsed.place.variable, {})
                        keys[parsed.what.removeprefix(_OPTIMIZER)] = None
                else:
                    names[parsed] = name
            words = next((name for path, name in names.items() if is_words(path)), None)
            self._words.append(parse_words(None if words is None else source.get_tensor(words)))
            self._others.append(_Others(source, names))

    @property
    def num_ranks(self) -> int:
        return len(self._sources)

    def has(self, what: str, variable: str) -> bool:
        """Whether any rank has elements of this kind (`what`) of a variable."""
        return (what, variable) in self._elements

    def whole(self, what: str, variable: str, like: torch.Tensor, *, rank: int | None = None) -> torch.Tensor:
        """Return a whole variable, joined from the pieces of all ranks, or from those of one `rank`."""
        pieces = [one for one in self._elements.get((what, variable), ()) if rank in (None, one.source)]
        read = [(one.place, self._sources[one.source].get_tensor(one.name)) for one in pieces]
        if not read:
            raise OperationError(f"there is no {what} of {variable}")
        try:
            return joined(read, like=like, dtype=read[0][1].dtype)
        except OperationError as error:
            raise OperationError(f"{what}: {error}") from error

    def mean(self, what: str, variable: str, like: torch.Tensor) -> torch.Tensor:
        """Return the mean over ranks of a variable that each rank has for itself."""
        total = self.whole(what, variable, like, rank=0)
        for rank in range(1, self.num_ranks):
            total += self.whole(what, variable, like, rank=rank)
        return total.div_(self.num_ranks) if total.is_floating_point() else total.floor_divide_(self.num_ranks)

    def own(self, what: str, variable: str, like: torch.Tensor, *, rank: int, num_ranks: int) -> torch.Tensor:
        """Return a rank's own values of a variable, or the mean over ranks if their number has changed."""
        if num_ranks == self.num_ranks:
            return self.whole(what, variable, like, rank=rank)
        return self.mean(what, variable, like)

    def other(self, path: Path) -> torch.Tensor:
        """Return a tensor that is the same on all ranks that have it."""
        for others in self._others:
            if path in others:
                return others[path].clone()
        raise OperationError(f"there is no {' '.join(path)}")

    def has_other(self, path: Path) -> bool:
        return any(path in others for others in self._others)

    def words(self, kind: str, name: str, *, rank: int | None = None) -> Any:
        """Return a value by kind and name, from the first rank that has it or only from `rank`; None if missing."""
        for number, (words, others) in enumerate(zip(self._words, self._others, strict=True)):
            if rank in (None, number) and name in words.get(kind, {}):
                return grown(words[kind][name], others)
        return None

    def named(self, kind: str) -> list[str]:
        """Return the names of all values of a kind, in the order in which they were saved."""
        return list(dict.fromkeys(name for words in self._words for name in words.get(kind, {})))

    def entry(self, variable: str, like: torch.Tensor, *, own: tuple[int, int] | None = None) -> dict[str, Any]:
        """Return the optimizer's state of a whole variable, or an empty dict if it has none.

        If each worker had its own state, `own` is the rank that asks and the current number of ranks.
        """
        is_same = own is not None and own[1] == self.num_ranks
        entry = dict(self.words("optimizer", variable, rank=own[0] if own is not None and is_same else None) or {})
        for key in self._optimizer_keys.get(variable, ()):
            what = f"{_OPTIMIZER}{key}"
            if own is None:
                entry[key] = self.whole(what, variable, like)
            else:
                entry[key] = self.own(what, variable, like, rank=own[0], num_ranks=own[1])
        return entry


class _Others(Mapping[Path, torch.Tensor]):
    """Tensors by path, which are read from their source on access."""

    def __init__(self, source: Source, names: dict[Path, str]) -> None:
        self._source = source
        self._names = names

    def __contains__(self, path: object) -> bool:
        return path in self._names

    def __getitem__(self, path: Path) -> torch.Tensor:
        return self._source.get_tensor(self._names[path])

    def __iter__(self) -> Iterator[Path]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
