"""Logs: one event a line, JSON or for people, to standard error, never a secret."""

import logging
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import Token
from typing import Any

import structlog
from opentelemetry import trace

Event = MutableMapping[str, Any]

#: `token` at the end only: counts of tokens are no secrets.
_SECRET_NAME = re.compile(
    r"password|secret|api_?key|authorization|credential|(^|_)token$", re.IGNORECASE
)
#: Where the password of a URL begins. It may hold an @ or a / that should have been escaped, so
#: it ends at the last @ of its word. (Two steps: one expression for both takes quadratic time.)
_URL_LOGIN = re.compile(r"(?<!\w)\w++://[^\s:/@]*:")
_WORD = re.compile(r"\S+")
#: The password of libpq's other notation, or of a URL's query.
_PASSWORD = re.compile(r"(password\s*=\s*)('[^']*'|[^\s&'\"]+)", re.IGNORECASE)
_HIDDEN = "***"


def hide_secrets(_: Any, __: str, event: Event) -> Event:
    """Masks values whose names say that they are secret, and passwords in addresses."""
    for key, value in event.items():
        event[key] = _masked(key, value)
    return event


def _masked(key: str, value: Any) -> Any:
    if _SECRET_NAME.search(key):
        return _HIDDEN
    if isinstance(value, str):
        if "://" in value:
            value = _WORD.sub(_without_url_password, value)
        return _PASSWORD.sub(rf"\1{_HIDDEN}", value)
    if isinstance(value, dict):
        return {name: _masked(str(name), inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(key, inner) for inner in value]
    return value


def _without_url_password(word: re.Match[str]) -> str:
    said = word[0]
    end = said.rfind("@")
    login = _URL_LOGIN.search(said, 0, max(end, 0))
    if login is None or login.end() == end:
        return said
    return said[: login.end()] + _HIDDEN + said[end:]


def add_trace(_: Any, __: str, event: Event) -> Event:
    """Adds the ids of the span under way."""
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = f"{context.trace_id:032x}"
        event["span_id"] = f"{context.span_id:016x}"
    return event


#: They report each connection of an outage, with tracebacks. What uses a connection reports it too.
_POOLS = ("sqlalchemy.pool", "psycopg.pool")
#: Fields of the log that identify the work; keys, never names.
_WORK_FIELDS = ("session", "memory", "answer", "revision")


@contextmanager
def about(**fields: object) -> Iterator[None]:
    """Adds fields to all lines of the log within its block."""
    before = say(**fields)
    try:
        yield
    finally:
        structlog.contextvars.reset_contextvars(**before)


def say(**fields: object) -> Mapping[str, Token[Any]]:
    """Adds fields to all lines of the log from now on, if they are among _WORK_FIELDS."""
    return structlog.contextvars.bind_contextvars(
        **{
            name: value if isinstance(value, int) else str(value)
            for name in _WORK_FIELDS
            if (value := fields.get(name)) is not None
        }
    )


def unsay() -> None:
    """Removes these fields from lines of the log."""
    structlog.contextvars.unbind_contextvars(*_WORK_FIELDS)


def work_fields() -> dict[str, Any]:
    """Returns the current fields of lines of the log, for a process that does part of the work."""
    bound = structlog.contextvars.get_contextvars()
    return {name: bound[name] for name in _WORK_FIELDS if name in bound}


def configure(level: str, form: str) -> None:
    """Sets logging up, for us and for the libraries. `form` is json or console."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_trace,
        structlog.processors.format_exc_info,
        hide_secrets,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    # Libraries say every pool connection and call at info, and whole requests, which have users'
    # texts in them, at debug.
    root.setLevel(max(logging.getLevelNamesMapping()[level.upper()], logging.WARNING))
    for name in _POOLS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger("palimpsest").setLevel(level.upper())
