"""Memories of all kinds, their history and their contexts, to and from the proto's messages."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from google.protobuf.field_mask_pb2 import FieldMask

from palimpsest._convert import common_fields, value_of
from palimpsest._errors import (
    AlreadyExists,
    FailedPrecondition,
    PalimpsestError,
    ResourceExhausted,
    reworded,
)
from palimpsest._specs import (
    AllowedOps,
    Coercion,
    Encoding,
    ReplyFormat,
    StateSettings,
    Steps,
    TreeSettings,
    state_settings,
    tree_settings,
)
from palimpsest._values_answers import Loss
from palimpsest.v1 import common_pb2, memories_pb2, memory_service_pb2

#: What a memory is.
MemoryKind = Literal["prism", "tree", "state"]


class MemoryStatus(StrEnum):
    """The status of a memory. Only a stalled one needs a client to continue."""

    ACTIVE = "active"
    #: It stopped at `blocked.position` and waits for `Memory.retry`.
    STALLED = "stalled"
    #: A tree that is complete: it reads nothing more.
    SEALED = "sealed"
    #: Its model does not reply at present; it tries again.
    WAITING = "waiting"
    #: A budget does not allow its next model call.
    OVER_BUDGET = "over_budget"


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocked:
    """Why a memory does not advance."""

    #: In a sentence or two, with advice.
    cause: str
    #: First position of the step that failed; 0 unless it is stalled.
    position: int
    #: Tries of that step; 0 unless it is stalled.
    attempts: int
    #: None when it is not recorded.
    since: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryInfo:
    """A memory and its progress."""

    session: str
    #: Unique within the session.
    id: str
    kind: MemoryKind
    #: The settings of a tree; None for other kinds.
    tree: TreeSettings | None
    #: The settings of a state memory; None for other kinds.
    state: StateSettings | None
    #: From here up to `skip_failures` of a PRISM memory; others have these empty.
    #: The schema as class source, as the model sees it.
    schema_source: str
    task: str
    question: str
    #: The form, length or language of answers; empty: full sentences.
    final_task: str
    #: Empty: the service's default.
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
    #: The memory is consolidated, or its steps are focused, beyond this many tokens; 0, in memories
    #: of earlier releases: half of the model's window.
    memory_tokens: int
    #: How long a step with few chunks waits for more; None: the service's default, and for messages
    #: only.
    linger_seconds: float | None
    #: Whether a step that failed for good is skipped; else the memory stalls.
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
    #: Whether a state memory has no compression that is due.
    idle: bool
    created_at: datetime
    #: What the steps of a PRISM memory have lost; empty when all is well.
    losses: tuple[Loss, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryState:
    """A memory's value at one revision."""

    info: MemoryInfo
    #: The state. Of a tree: `sealed`, `tops` and `tail`, as `Tree.outline` has them.
    value: dict[str, Any]
    #: The revision that was read.
    revision: int
    #: All chunks up to here are in it.
    applied_position: int
    #: For `after=` of a later read, which then is at least as fresh.
    read_token: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Flushed:
    """The log when the wait for more chunks ended."""

    #: For `after=` of a read that must see these chunks applied.
    read_token: str
    #: Position of the newest chunk then.
    head: int


def memory(message: memories_pb2.Memory) -> MemoryInfo:
    """Returns a memory without its value."""
    kind: MemoryKind = message.WhichOneof("spec") or "prism"
    prism = message.prism
    return value_of(
        MemoryInfo,
        message,
        kind=kind,
        tree=tree_settings(message.tree) if kind == "tree" else None,
        state=state_settings(message.state) if kind == "state" else None,
        **common_fields(MemoryInfo, prism),
        linger_seconds=prism.linger.ToMilliseconds() / 1000 if prism.HasField("linger") else None,
        skip_failures=prism.on_failure == common_pb2.ON_FAILURE_SKIP,
    )


def memory_state(message: memories_pb2.Memory) -> MemoryState:
    """Returns a memory with its value."""
    point = common_fields(MemoryState, message.read_point)
    return value_of(MemoryState, message, info=memory(message), **point)


def update_request(
    session: str, memory: str, kind: MemoryKind, changes: Mapping[str, Any], **others: Any
) -> memory_service_pb2.UpdateMemoryRequest:
    """Returns the request; a field of the spec that is None is unchanged."""
    spec = {name: given for name, given in changes.items() if given is not None}
    fields: dict[str, Any] = {kind: spec}
    message = memories_pb2.Memory(session=session, id=memory, **fields)
    return memory_service_pb2.UpdateMemoryRequest(
        memory=message,
        update_mask=FieldMask(paths=[f"{kind}.{name}" for name in spec]),
        **others,
    )


#: Fields of the proto and the settings that have other names.
_RENAMED = {"linger": "linger_seconds", "idle": "idle_seconds", "on_failure": "skip_failures"}


def settings_that_differ(
    wanted: memories_pb2.Memory,
    existing: memories_pb2.Memory,
    schema_source: str,
    only: Collection[str] | None = None,
) -> list[str]:
    """Returns in words how an existing memory differs from the wanted one.

    Compares the settings that are given, or `only` some of them. `schema_source` is the wanted
    schema as the service stores it.
    """
    kind, there = wanted.WhichOneof("spec") or "prism", existing.WhichOneof("spec")
    if there != kind:
        return [f"is a {there} memory, not a {kind} memory"]
    spec = getattr(wanted, kind)
    new, old = _settings(wanted), _settings(existing)
    found = []
    for field, _ in spec.ListFields():
        if field.name in ("schema_source", "json_schema"):
            if schema_source != old.schema_source:
                found.append("its schema is another one")
            continue
        name = _RENAMED.get(field.name, field.name)
        asked, has = getattr(new, name), getattr(old, name)
        if asked != has and (only is None or name in only):
            found.append(f"{name} is {has!r}, not {asked!r}")
    return found


def existing_differs(id: str, others: Iterable[str], error: AlreadyExists) -> AlreadyExists:
    """Returns the error for a memory that exists with other settings than the wanted ones."""
    return reworded(
        error,
        f"memory {id!r} exists already, and {'; '.join(others)}. Use it"
        " as it is (session.memory, session.tree or session.state), choose another id, or"
        " build one with these settings from the whole log (rebuild)",
    )


def blocked_error(info: MemoryInfo) -> PalimpsestError | None:
    """Returns the error for a memory that needs a client to advance; None for others."""
    if info.blocked is None:
        return None
    position, cause = info.blocked.position, info.blocked.cause
    if info.status is MemoryStatus.OVER_BUDGET:
        return ResourceExhausted(
            f"memory {info.id!r} is held: {cause}",
            reason="BUDGET_EXHAUSTED",
            metadata={"memory": info.id, "cause": cause},
        )
    if info.status is MemoryStatus.STALLED:
        return FailedPrecondition(
            f"memory {info.id!r} stalled at position {position}: {cause}",
            reason="MEMORY_STALLED",
            metadata={"memory": info.id, "position": str(position), "cause": cause},
        )
    return None


def _settings(message: memories_pb2.Memory) -> Any:
    info = memory(message)
    return info.tree or info.state or info
