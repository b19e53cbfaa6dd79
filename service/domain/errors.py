"""Every error that a caller can see, as one tree.

    PalimpsestError
    ├── InvalidInput         the request itself is wrong
    │   └── SchemaInvalid    … at a line and column of schema source
    ├── NotFound             what it names does not exist
    ├── AlreadyExists        what it makes exists, or differs from what exists
    ├── OutOfRange           a number beyond what there is
    ├── Conflict             somebody else was first; read again and retry
    ├── Exhausted            a limit is used up; later it may not be
    ├── FailedPrecondition   the thing is in a state that forbids it
    ├── DeadlineExceeded     not in time; says how far things are
    └── Unavailable          a part of the service cannot be reached; retry

`service/rpc/errors.py` maps the tree to gRPC codes.
"""

from collections.abc import Mapping

from service.domain.reasons import Reason


class PalimpsestError(Exception):
    """A refusal with a reason.

    `reason` is one of `Reason` (the proto's ErrorReason), `metadata` holds the
    values that the reason's comment in errors.proto names.
    """

    def __init__(
        self, reason: Reason, message: str, metadata: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = {key: str(value) for key, value in (metadata or {}).items()}


class InvalidInput(PalimpsestError):
    """The request itself is wrong; the same request will never be right.

    `field` is the request's field, for example "chunks[3].chunk.text".
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        metadata: Mapping[str, object] | None = None,
        *,
        field: str = "",
    ) -> None:
        super().__init__(reason, message, metadata)
        self.field = field


class SchemaInvalid(InvalidInput):
    """Schema source that does not parse, or uses what a schema cannot hold.

    `line` and `column` count from 1.
    """

    def __init__(self, message: str, *, line: int, column: int) -> None:
        super().__init__(
            Reason.SCHEMA_INVALID,
            f"line {line}, column {column}: {message}",
            {"line": line, "column": column},
            field="prism.schema_source",
        )
        self.line = line
        self.column = column


class NotFound(PalimpsestError):
    """What the request names does not exist."""


class AlreadyExists(PalimpsestError):
    """What the request makes exists already, or exists with other content."""


class OutOfRange(PalimpsestError):
    """A number beyond what there is."""


class Conflict(PalimpsestError):
    """Somebody else was first: read again, then retry."""


class Exhausted(PalimpsestError):
    """A limit is used up. `retry_seconds` is when it may not be any more."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        metadata: Mapping[str, object] | None = None,
        *,
        retry_seconds: float,
    ) -> None:
        super().__init__(reason, message, metadata)
        self.retry_seconds = retry_seconds


class FailedPrecondition(PalimpsestError):
    """The thing is in a state that forbids it until something else is done."""


class DeadlineExceeded(PalimpsestError):
    """Not in time; `metadata` says how far things are."""


class Unavailable(PalimpsestError):
    """A part of the service cannot be reached now; retry after `retry_seconds`."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        metadata: Mapping[str, object] | None = None,
        *,
        retry_seconds: float = 1.0,
    ) -> None:
        super().__init__(reason, message, metadata)
        self.retry_seconds = retry_seconds
