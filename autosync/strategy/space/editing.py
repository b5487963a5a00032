"""Helpers of the changes of one aspect."""

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
    """The facts that changes need: the space's limits and choices, the nodes' bandwidths, the variables by name."""

    limits: Limits
    choices: Choices
    bandwidths: Sequence[float]
    variables: Mapping[str, Variable]

    def variable_of(self, part: str) -> Variable:
        """Return the variable that a part is cut from."""
        return self.variables[PartName.parse(part).variable]

    def settings(self, message: Message, strategy: Strategy) -> list[Setting]:
        """Return every setting that a message with the parts of `message` may have."""
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
    """Return the room of a space."""
    return Room(
        limits=limits,
        choices=choices,
        bandwidths=tuple(bandwidths.values()),
        variables={variable.name: variable for variable in model.variables},
    )


def must_be_alone(message: Message) -> bool:
    """Whether a message's synchroniser allows only one part."""
    return message.synchroniser.travels_alone


def may_be_cut(message: Message) -> bool:
    """Whether a message stays legal however its variables are cut; under PowerSGD the shapes of parts matter."""
    return not isinstance(message.codec, PowerSGD)


def with_messages(strategy: Strategy, messages: Sequence[Message]) -> Strategy:
    """Return the strategy with other messages and without its name."""
    return replace(strategy, name="", messages=tuple(messages))


def with_message(strategy: Strategy, position: int, message: Message) -> Strategy:
    """Return the strategy with one message replaced, and without its name."""
    messages = list(strategy.messages)
    messages[position] = message
    return with_messages(strategy, messages)


def with_setting(message: Message, setting: Setting) -> Message:
    """Return the message with another synchroniser and codec, without slices if these do not allow any."""
    slice_bytes = message.slice_bytes if setting.slices else None
    return replace(message, synchroniser=setting.synchroniser, codec=setting.codec, slice_bytes=slice_bytes)
