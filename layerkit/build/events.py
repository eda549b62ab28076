"""What a build tells while it runs; the command line draws it. Immutable values, sent from the building thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageStarted:
    """A stage begins; `title` is its name, `origin` what it is FROM."""

    title: str
    origin: str
    steps: int


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A step begins; `number` counts from 1 within its stage."""

    stage: str
    number: int
    total: int
    text: str


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Bytes that a RUN wrote; `stream` is stdout or stderr."""

    stream: str
    data: bytes


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step ended; `new_bytes` is what it added to the store."""

    stage: str
    number: int
    cached: bool
    seconds: float
    new_bytes: int


@dataclass(frozen=True, slots=True)
class LayerDone:
    """A layer is in the store."""

    ref: str
    digest: str
    existed: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Note:
    """Something the author should know; not an error."""

    text: str
    where: str = ""


Event = StageStarted | StepStarted | StepOutput | StepDone | LayerDone | Note
Report = Callable[[Event], None]
