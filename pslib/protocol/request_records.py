"""What is remembered of a request that is asked again, and the instructions and failures that come of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pslib.protocol.codec import Buffer
from pslib.protocol.messages import Message

__all__ = ["Expired", "Outgoing", "Request"]


class Outgoing(NamedTuple):
    """An instruction to send frames to the peer at an address."""

    peer: str
    frames: list[Buffer]


@dataclass(frozen=True, slots=True)
class Expired:
    """A request that nobody has answered in time."""

    ticket: int
    peer: str
    waited_s: float
    why: str = ""
    """What the peer has said meanwhile."""


@dataclass(slots=True)
class Request:
    """A request that is not answered yet, and what has been tried for it."""

    ticket: int
    peer: str
    message: Message
    started_s: float
    deadline_s: float
    next_try_s: float
    pause_s: float
    cost: int = 0
    """Bytes that count against the credit of its peer; 0: it needs none."""
    why: str = ""
    """What the peer has answered that can't do it yet."""
    refused: bool = False
    """Whether it has answered so since it was sent last."""
    sent_s: float = 0.0
    """When it was sent for the first time."""
    attempts: list[int] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    """Request ids of attempts for which the peer was, or is, asked for credit."""
    wishes: list[int] = field(default_factory=list)
    """Request ids of the questions; a server answers the last one, or none while its answer is on the way."""
    patient_until_s: float = field(init=False)
    """The deadline while nobody refuses it."""

    def __post_init__(self) -> None:
        self.patient_until_s = self.deadline_s
