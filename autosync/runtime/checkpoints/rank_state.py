"""One rank's share of the state of a training, as named tensors: the content of a file or of a message.

The format is the same on disk and on the wire: safetensors, which holds numbers and a table of them, so that reading it
cannot run code. A tensor's name is a JSON list. Elements of a variable are named by their kind and place, `["residual",
"fc.weight", 0, 0, 10, 0, 100]`; every other tensor by a path of words, `["right", "fc.weight", …]`. Everything that is
no tensor (an optimizer's options, for example) is text in the tensor `["words"]`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import safetensors.torch
import torch

from autosync.errors import OperationError
from autosync.runtime.memory.kept_state import Held, Path, Place, is_elementwise

_WORDS: Path = ("words",)
_DEEPEST = 32


class Elements(NamedTuple):
    """The parsed name of a tensor that holds elements of a variable: their kind and their place."""

    what: str
    place: Place


@dataclass(slots=True, kw_only=True)
class RankState:
    """The state of one rank. `words` are JSON values by kind and name; tensors within them are in `others`."""

    elements: list[Held] = field(default_factory=list)
    others: dict[Path, torch.Tensor] = field(default_factory=dict)
    words: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add_words(self, kind: str, name: str, value: Any) -> None:
        """Add a value made of tensors, numbers, truth values, strings, lists and dicts."""
        self.words.setdefault(kind, {})[name] = _planted(value, (kind, name), self.others)

    def add_optimizer(self, name: str, place: Place, shape: Sequence[int], entry: Mapping[str, Any]) -> None:
        """Add the optimizer's state of some elements of a variable; `shape` is their shape in the optimizer."""
        rest = {}
        for key, value in entry.items():
            if is_elementwise(key, value, shape):
                self.elements.append(Held(f"optimizer {key}", place, value.detach().reshape(-1)))
            else:
                rest[key] = value
        self.add_words("optimizer", name, rest)

    def add_all(self, other: RankState) -> None:
        """Add the state of another rank."""
        self.elements += other.elements
        self.others |= other.others
        for kind, words in other.words.items():
            self.words.setdefault(kind, {}).update(words)


def pack(state: RankState) -> bytes:
    """Return a copy of a rank's state as the bytes of a safetensors file."""
    tensors = {_name([held.what, *held.place]): _plain(held.values) for held in state.elements}
    tensors |= {_name(path): _plain(tensor) for path, tensor in state.others.items()}
    text = json.dumps(state.words, ensure_ascii=False).encode()
    tensors[_name(_WORDS)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return safetensors.torch.save(tensors)


def unpack(content: bytes) -> RankState:
    """Return the state that `pack` has turned into bytes."""
    state = RankState()
    for name, tensor in safetensors.torch.load(content).items():
        parsed = parse_name(name)
        if isinstance(parsed, Elements):
            state.elements.append(Held(parsed.what, parsed.place, tensor))
        elif is_words(parsed):
            state.words = parse_words(tensor)
        else:
            state.others[parsed] = tensor
    return state


def parse_name(name: str) -> Elements | Path:
    """Parse a tensor's name, which stands for elements of a variable or for a path."""
    try:
        found = json.loads(name)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list) and len(found) == 7 and _are_words(found[:2]) and _are_numbers(found[2:]):
        return Elements(found[0], Place(found[1], *found[2:]))
    if isinstance(found, list) and found and _are_words(found):
        return tuple(found)
    raise OperationError(f"a tensor has the name {name[:80]!r}, which is none of autosync's")


def parse_words(tensor: torch.Tensor | None) -> dict[str, dict[str, Any]]:
    """Parse the tensor that holds a state's words."""
    try:
        found = None if tensor is None else json.loads(tensor.numpy().tobytes().decode())
    except (ValueError, RecursionError, TypeError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise OperationError("it has no words that can be read")
    return found


def is_words(path: Path) -> bool:
    """Whether this is the path of the tensor that holds the words."""
    return path == _WORDS


def grown(tree: Any, others: Mapping[Path, torch.Tensor], depth: int = 0) -> Any:
    """Rebuild a value that `add_words` has stored."""
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if isinstance(tree, dict) and len(tree) == 1 and depth < _DEEPEST:
        ((kind, content),) = tree.items()
        if kind == "tensor" and isinstance(content, list) and tuple(map(str, content)) in others:
            return others[tuple(map(str, content))].clone()
        if kind in ("list", "tuple") and isinstance(content, list):
            found = [grown(one, others, depth + 1) for one in content]
            return tuple(found) if kind == "tuple" else found
        if kind == "dict" and isinstance(content, dict):
            return {key: grown(one, others, depth + 1) for key, one in content.items()}
    raise OperationError(f"{json.dumps(tree)[:80]} is no value that autosync writes")


def _planted(value: Any, path: Path, others: dict[Path, torch.Tensor]) -> Any:
    """Return a value in a form that JSON can hold, and put its tensors into `others`."""
    if isinstance(value, torch.Tensor):
        others[path] = value.detach()
        return {"tensor": list(path)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_planted(one, (*path, str(index)), others) for index, one in enumerate(value)]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _planted(one, (*path, key), others) for key, one in value.items()}}
    raise OperationError(
        f"{' '.join(path)} is a {type(value).__name__}, which cannot be saved as data (tensors, numbers, truth values, "
        "words, and lists and tables of them can)"
    )


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor on the CPU, which shares no memory with others."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _name(path: Sequence[str | int]) -> str:
    return json.dumps(list(path), ensure_ascii=False)


def _are_words(values: Sequence[Any]) -> bool:
    return all(isinstance(one, str) for one in values)


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(one, int) and not isinstance(one, bool) for one in values)
