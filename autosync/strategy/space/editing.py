"""Editing: what the changes of one aspect have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.codecs import PowerSGD
from autosync.strategy.parts import PartName, parts_of
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space.choices import Choices, Setting
from autosync.strategy.space.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What changes may draw from: the space, and its variables by name."""

    limits: Limits
    choices: Choices
    bandwidths: Sequence[float]
    variables: Mapping[str, Variable]

    def variable_of(self, part: str) -> Variable:
        """The variable that a part is cut from."""
        return self.variables[PartName.parse(part).variable]

    def settings(self, message: Message, strategy: Strategy) -> list[Setting]:
        """Every setting that a message with these parts may have."""
        variable = self.variable_of(message.parts[0])
        dense = self.choices.dense[variable.dtype]
        found = [setting for setting in dense if not setting.rank]
        if len(found) < len(dense):
            side = min(self._smaller_side(part, strategy) for part in message.parts)
            found.extend(setting for setting in dense if 0 < setting.rank < side)
        if len(message.parts) == 1:
            found.extend(self.choices.alone[variable.kind])
        return found

    def _smaller_side(self, part: str, strategy: Strategy) -> int:
        name = PartName.parse(part)
        variable = self.variables[name.variable]
        return parts_of(variable, strategy.partitions.get(name.variable))[name.index].smaller_side


def make_room(model: ModelSpec, bandwidths: Mapping[str, float], limits: Limits, choices: Choices) -> Room:
    """The room of a space."""
    return Room(
        limits=limits,
        choices=choices,
        bandwidths=tuple(bandwidths.values()),
        variables={variable.name: variable for variable in model.variables},
    )


def must_be_alone(message: Message) -> bool:
    """Whether a message's synchroniser takes one part only."""
    return message.synchroniser.travels_alone


def may_be_cut(message: Message) -> bool:
    """Whether any cut of its variables leaves a message legal: PowerSGD looks at shapes."""
    return not isinstance(message.codec, PowerSGD)


def with_messages(strategy: Strategy, messages: Sequence[Message]) -> Strategy:
    """The strategy with other messages, and without its name."""
    return replace(strategy, name="", messages=tuple(messages))


def with_message(strategy: Strategy, position: int, message: Message) -> Strategy:
    """The strategy with one message exchanged."""
    messages = list(strategy.messages)
    messages[position] = message
    return with_messages(strategy, messages)


def with_setting(message: Message, setting: Setting) -> Message:
    """The message with another synchroniser and codec; slices are given up where these allow none."""
    slice_bytes = message.slice_bytes if setting.slices else None
    return replace(message, synchroniser=setting.synchroniser, codec=setting.codec, slice_bytes=slice_bytes)
