"""Every error that a client can see, as one tree.

    PalimpsestError
    ├── InvalidInput         the request itself is wrong
    │   └── SchemaInvalid    … at a place of a schema
    ├── NotFound             what it names does not exist
    ├── AlreadyExists        what it creates exists, or differs from what exists
    ├── OutOfRange           a number beyond what there is
    ├── Conflict             another writer was first; read again and retry
    ├── Exhausted            a limit is used up; retry later
    │   └── BudgetExhausted  … a budget for model calls
    ├── FailedPrecondition   the state of its target forbids it
    ├── DeadlineExceeded     not in time; its metadata has the progress
    ├── Cancelled            what the client waits for was cancelled
    ├── Unauthenticated      it is not known who calls
    ├── PermissionDenied     the client may not do this
    └── Unavailable          a part of the service cannot be reached; retry

`service/rpc/errors.py` maps the tree to gRPC codes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from service.domain.values.reasons import Reason


@dataclass(frozen=True, kw_only=True, slots=True)
class CallBound:
    """The most that a call may cost, as far as it is known before the call."""

    #: Prompt and reply together.
    tokens: int
    #: None when the model has no price.
    micro_usd: int | None
    #: As in `Call`.
    key: bytes = b""


class PalimpsestError(Exception):
    """A refusal with a reason.

    `reason` is one of `Reason` (the proto's ErrorReason), and `metadata` has the values that the
    reason's comment in errors.proto names. `field` is the field of an invalid request, for example
    "chunks[3].chunk.text". After `retry_seconds` a limit may be free, or a part of the service
    reachable.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        metadata: Mapping[str, object] | None = None,
        *,
        field: str = "",
        retry_seconds: float = 1.0,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = {key: str(value) for key, value in (metadata or {}).items()}
        self.field = field
        self.retry_seconds = retry_seconds


class InvalidInput(PalimpsestError):
    """The request itself is wrong; the same request will never be right."""


#: Characters of a refused schema's message and of its place: they travel in gRPC's
#: trailers, which `service/rpc/errors.py` bounds in bytes.
_MAX_MESSAGE_CHARACTERS = 1000


class SchemaInvalid(InvalidInput):
    """A schema that does not parse, or uses what a schema cannot have.

    Its place is a line and a column, which count from 1, or a JSON Pointer (RFC 6901) into a JSON
    Schema; line and column are 0 then. `field` is the request's field with the schema.
    """

    def __init__(
        self,
        message: str,
        *,
        line: int = 0,
        column: int = 0,
        pointer: str | None = None,
        field: str = "prism.schema_source",
    ) -> None:
        metadata: dict[str, object]
        if pointer is None:
            place, metadata = f"line {line}, column {column}: ", {"line": line, "column": column}
        else:
            pointer = _shortened_pointer(_sendable(pointer))
            # The pointer to the whole is the empty one.
            place, metadata = f"{pointer}: " if pointer else "", {"pointer": pointer}
        message = _sendable(message)
        if len(message) > _MAX_MESSAGE_CHARACTERS:
            message = message[:_MAX_MESSAGE_CHARACTERS] + "…"
        super().__init__(Reason.SCHEMA_INVALID, place + message, metadata, field=field)
        self.line = line
        self.column = column
        self.pointer = pointer


def _sendable(text: str) -> str:
    # A schema may name halves of surrogate pairs; protobuf does not carry them.
    return text.encode(errors="backslashreplace").decode()


def _shortened_pointer(pointer: str) -> str:
    # Up to a whole step, so that it still points at a part that the fault is in.
    if len(pointer) <= _MAX_MESSAGE_CHARACTERS:
        return pointer
    return pointer[: pointer.rindex("/", 0, _MAX_MESSAGE_CHARACTERS)]


class NotFound(PalimpsestError):
    """What the request names does not exist."""


class AlreadyExists(PalimpsestError):
    """What the request creates exists already, or exists with other content."""


class OutOfRange(PalimpsestError):
    """A number beyond what there is."""


class Conflict(PalimpsestError):
    """Another writer was first: read again, then retry."""


class Exhausted(PalimpsestError):
    """A limit is used up; retry after `retry_seconds`."""


class BudgetExhausted(Exhausted):
    """A model call, `asked`, that a budget does not allow.

    After `resume_seconds` it may be allowed; None: the budget must be raised or deleted first.
    `waits_for_calls`: calls under way reserve what is left, and may release some when they end.
    """

    def __init__(
        self,
        message: str,
        metadata: Mapping[str, object],
        *,
        asked: CallBound,
        resume_seconds: float | None,
        waits_for_calls: bool = False,
    ) -> None:
        super().__init__(
            Reason.BUDGET_EXHAUSTED, message, metadata, retry_seconds=resume_seconds or 0.0
        )
        self.asked = asked
        self.resume_seconds = resume_seconds
        self.waits_for_calls = waits_for_calls


class FailedPrecondition(PalimpsestError):
    """The state of the request's target forbids it until something else is done."""


class DeadlineExceeded(PalimpsestError):
    """Not in time; `metadata` has the progress."""


class Cancelled(PalimpsestError):
    """What the client waits for was cancelled."""


class Unauthenticated(PalimpsestError):
    """Without valid credentials: the same call with others may be right."""


class PermissionDenied(PalimpsestError):
    """The client's credentials do not allow this."""


class Unavailable(PalimpsestError):
    """A part of the service cannot be reached now; retry after `retry_seconds`."""


def server_stopping() -> Unavailable:
    """Returns the error of calls that still wait when their server stops."""
    return Unavailable(
        Reason.SERVER_STOPPING, "this server is stopping; another one serves: call again"
    )
