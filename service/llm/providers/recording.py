"""Records exchanges with models in the folder `PALIMPSEST_RECORD`, a file for each request.

A case that fails can be replayed by the same code, and kept as a test. The files contain the text
of prompts and replies, but no keys.
"""

import json
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel

from service.domain.prompting.flows import ModelRequest
from service.llm.providers.failures import REMOVED
from service.llm.providers.native import NativeAnswer

VERSION = 1
#: The rest of a longer file is not read, so it is refused.
MAX_FILE_BYTES = 64 * 1024 * 1024
#: Arguments that are not part of the request.
_LEFT_OUT = frozenset({"api_key", "api_base", "logger_fn"})

#: Tenant and session of the call under way.
_about: ContextVar[tuple[UUID, UUID] | None] = ContextVar("palimpsest_recorded", default=None)
_NAME = re.compile(r"(\d{1,20})-\d+-\w+-([0-9a-f]{32})-([0-9a-f]{32})\.json")


class NoRecord(Exception):
    """A file does not contain an exchange; the message is one sentence."""


class _Native(BaseModel):
    """What `NativeAnswer.record` returns."""

    reason: str
    words: str
    status: int | None
    text: str


class RecordedExchange(BaseModel):
    """One exchange, read from its file."""

    version: Literal[1]
    model: str
    ask: ModelRequest
    #: litellm's response as values; None if the request failed.
    response: dict[str, Any] | None
    #: Name, status and message of litellm's error.
    error: dict[str, Any] | None
    #: The provider's own answer.
    native: _Native


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedFile:
    """The file of one exchange, as its name describes it."""

    path: Path
    #: When it was written, in seconds since 1970.
    seconds: float
    tenant_id: UUID
    session_key: UUID


@contextmanager
def about(tenant_id: UUID, session_key: UUID) -> Iterator[None]:
    """Names the tenant and session of the exchanges that are written within."""
    token = _about.set((tenant_id, session_key))
    try:
        yield
    finally:
        _about.reset(token)


def recorded_files(folder: Path) -> Sequence[RecordedFile]:
    """Returns the files that name their session. Raises OSError, not for an absent folder."""
    found = []
    with suppress(FileNotFoundError):
        for name in os.listdir(folder):
            if (matched := _NAME.fullmatch(name)) is not None:
                file = RecordedFile(
                    path=folder / name,
                    seconds=int(matched[1]) / 1e9,
                    tenant_id=UUID(matched[2]),
                    session_key=UUID(matched[3]),
                )
                found.append(file)
    return found


def write(
    folder: Path,
    *,
    model: str,
    ask: ModelRequest,
    arguments: Mapping[str, Any],
    response: Any = None,
    error: Exception | None = None,
    native: NativeAnswer,
    extras: Collection[str] = (),
    secrets: Collection[str] = (),
) -> Path:
    """Writes one exchange, which only its owner may read. Raises OSError.

    It contains neither `secrets` nor the values of the fields named by `extras`.
    """
    said = {
        "version": VERSION,
        "model": model,
        "purpose": ask.purpose.value,
        "template": ask.template,
        "segments": [{"kind": one.kind.value, "text": one.text} for one in ask.segments],
        "max_output_tokens": ask.max_output_tokens,
        "reply_schema": ask.reply_schema,
        "arguments": _shown(arguments, extras),
        "response": None if response is None else response.model_dump(mode="json"),
        "error": None if error is None else _error(error),
        "native": native.record(),
    }
    text = json.dumps(said, ensure_ascii=False, indent=1, default=str)
    for secret in secrets:
        # As it is in JSON.
        text = text.replace(json.dumps(secret, ensure_ascii=False)[1:-1], REMOVED)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    ids = "".join(f"-{one.hex}" for one in _about.get() or ())
    path = folder / f"{time.time_ns()}-{os.getpid()}-{ask.purpose.value}{ids}.json"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return path


def _shown(arguments: Mapping[str, Any], extras: Collection[str]) -> dict[str, Any]:
    shown = {
        name: REMOVED if name in extras else one
        for name, one in arguments.items()
        if name not in _LEFT_OUT
    }
    body = shown.get("extra_body")
    if isinstance(body, dict):
        shown["extra_body"] = {
            name: REMOVED if name in extras else one for name, one in body.items()
        }
    return shown


def _error(error: Exception) -> dict[str, Any]:
    return {
        "name": type(error).__name__,
        "status": getattr(error, "status_code", None),
        "message": str(getattr(error, "message", None) or error),
    }


def read(path: Path) -> RecordedExchange:
    """Returns an exchange. Raises NoRecord."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise NoRecord(f"{path} cannot be read: {error.strerror}") from None
    try:
        said = json.loads(raw)
        # The fields of the request are beside the others.
        return RecordedExchange.model_validate({**said, "ask": said})
    except (TypeError, ValueError, RecursionError):
        raise NoRecord(f"{path} is no whole exchange that PALIMPSEST_RECORD wrote") from None
