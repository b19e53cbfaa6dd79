"""Memories of all kinds, their history and their contexts: plain values."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from palimpsest._values_answers import Loss
from palimpsest._values_specs import (
    AllowedOps,
    Coercion,
    Encoding,
    ReplyFormat,
    StateSettings,
    Steps,
    TreeSettings,
)

#: What a memory is.
MemoryKind = Literal["prism", "tree", "state"]


class MemoryStatus(StrEnum):
    """What a memory is doing. Only a stalled one needs a client: the others go on by themselves."""

    ACTIVE = "active"
    #: It stopped at `blocked.position` and waits for `Memory.retry`.
    STALLED = "stalled"
    #: A tree that is complete: it reads nothing more.
    SEALED = "sealed"
    #: Its model gives no reply for now; it tries again.
    WAITING = "waiting"
    #: A budget does not allow its next model call.
    OVER_BUDGET = "over_budget"


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocked:
    """Why a memory does not advance."""

    #: In a sentence or two, with what to do.
    cause: str
    #: First position of the step that failed; 0 unless it is stalled.
    position: int
    #: How often that step was tried; 0 unless it is stalled.
    attempts: int
    #: Since when; None where that is not recorded.
    since: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryInfo:
    """A memory and how far it is."""

    session: str
    #: Unique within the session.
    id: str
    kind: MemoryKind
    #: Of a tree; None for others.
    tree: TreeSettings | None
    #: Of a state memory; None for others.
    state: StateSettings | None
    #: From here up to `skip_failures` of a PRISM memory; others have these empty.
    #: The shape of the memory, as class source, as the model is shown it.
    schema_source: str
    task: str
    question: str
    #: How answers are written: their form, length, language; empty: in full sentences.
    final_task: str
    #: Model that it names; empty for the service's default.
    model: str
    encoding: Encoding
    allowed_ops: AllowedOps
    coercion: Coercion
    reply_format: ReplyFormat
    steps: Steps
    #: A step reads chunks up to this many tokens.
    chunk_tokens: int
    #: Amendments are folded into a new base when they pass this many tokens, if not before.
    fold_tokens: int
    #: The memory is consolidated when it passes this many tokens, or its steps are focused; 0, of
    #: a memory that an earlier release made: half of its model's window.
    memory_tokens: int
    #: How long a step waits for more chunks while it has few; None: the service's default,
    #: while all that waits is messages.
    linger_seconds: float | None
    #: A step that failed for good is skipped; else the memory stalls.
    skip_failures: bool
    status: MemoryStatus
    #: Why it does not advance, when it is stalled, waiting or over budget; else None.
    blocked: Blocked | None
    #: The newest revision.
    revision: int
    #: All chunks up to here are in it.
    applied_position: int
    #: The session's head at the same moment.
    head: int
    #: The memory that it was rebuilt from; else empty.
    rebuilt_from: str
    #: Of a state memory: no compression is due.
    idle: bool
    created_at: datetime
    #: Of a PRISM memory: what its steps lost, though it continues; empty when all is well.
    losses: tuple[Loss, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryState:
    """A memory's value at one revision."""

    info: MemoryInfo
    #: The state. Of a tree: `sealed`, `tops` and `tail`, as `Tree.outline` has them.
    value: dict[str, Any]
    #: The revision that it is the state at.
    revision: int
    #: All chunks up to here are in it.
    applied_position: int
    #: For `after=` of a later read, which then is at least as fresh.
    read_token: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Flushed:
    """The log as it was when the wait for more chunks was ended."""

    #: For `after=` of a read that must see these chunks applied.
    read_token: str
    #: Position of the newest chunk then.
    head: int
