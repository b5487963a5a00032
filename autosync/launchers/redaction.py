"""Hides secrets in everything that is shown of a launch: tokens and passwords in the environments of ranks.

A variable or option is secret by its name (`WANDB_API_KEY`, `--password`). Its value is hidden wherever it occurs: in
command lines, batch scripts, manifests and fields of cluster files. Passwords in URLs are hidden too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

HIDDEN = "HIDDEN"
_SECRET = re.compile(
    r"passw|passphrase|passcode|secret|credential|cookie|webhook|connection_?string|token$|token_\d+$|oauth"
    r"|api_?keys?$|(^|_)(auth|authorization|key|pat|pwd|pw|pass|jwt|sas|dsn|otp)$"
)
# Names that are not secret: tokens of language models, working directories, and paths or types of secrets.
_NO_SECRET = re.compile(
    r"(^|_)(eos|bos|pad|unk|sep|cls|mask|special)_?token$|^(old)?pwd$|(^|_)(sock|file|path|dir|name|mode|type)$"
)
_URL = re.compile(r"(?P<head>[A-Za-z][A-Za-z0-9+.-]*://[^\s/@:\"']*):(?P<password>[^\s@\"']+)@")
_SETTING = re.compile(r"(?P<head>[-+]{0,2}(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)=)(?P<value>.+)", re.DOTALL)
_SHORTEST = 6
"""Shorter values are not searched for in other text: they would be found in unrelated words."""


def is_secret(name: str) -> bool:
    """Whether a variable or an option of that name is secret."""
    word = name.lstrip("-").lower().replace("-", "_").replace(".", "_")
    return bool(_SECRET.search(word)) and not _NO_SECRET.search(word)


@dataclass(frozen=True, slots=True)
class Redaction:
    """The values to hide: the values of secret variables in this process or in the environments of ranks."""

    values: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, *environments: Mapping[str, str]) -> Self:
        """Collect the secrets of environments, the longest first, because one may contain another."""
        found = {
            value
            for environment in environments
            for name, value in environment.items()
            if is_secret(name) and len(value) >= _SHORTEST
        }
        return cls(tuple(sorted(found, key=len, reverse=True)))

    def text(self, text: str) -> str:
        """Return the text with known secrets and passwords of URLs hidden."""
        for value in self.values:
            text = text.replace(value, HIDDEN)
        return _URL.sub(rf"\g<head>:{HIDDEN}@", text)

    def words(self, words: Sequence[str]) -> list[str]:
        """Return a command line with secrets hidden, including values after a secret name (`--token X`, `TOKEN=X`)."""
        shown, is_next = [], False
        for word in words:
            shown.append(HIDDEN if is_next and not word.startswith("-") else self.text(_without_secret(word)))
            is_next = word.startswith("-") and _SETTING.fullmatch(word) is None and is_secret(word)
        return shown

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables with the values of secret ones hidden."""
        return {name: HIDDEN if is_secret(name) else self.text(value) for name, value in environment.items()}

    def manifest(self, part: Any) -> Any:
        """Return a manifest with secrets hidden in entries of `env`, in commands and in all other text."""
        match part:
            case {"name": str(name), "value": value, **rest} if is_secret(name) and isinstance(value, str | int):
                return {"name": name, "value": HIDDEN, **self.manifest(rest)}
            case Mapping():
                return {key: self.manifest(value) for key, value in part.items()}
            case [*items] if all(isinstance(item, str) for item in items):
                return self.words(items)
            case [*items]:
                return [self.manifest(item) for item in items]
            case str():
                return self.text(part)
        return part


def _without_secret(word: str) -> str:
    """Return a word with the value hidden if it is a secret setting, or one within another (`--env=API_KEY=...`)."""
    head, rest = "", word
    while setting := _SETTING.fullmatch(rest):
        head += setting["head"]
        if is_secret(setting["name"]):
            return f"{head}{HIDDEN}"
        rest = setting["value"]
    return word
