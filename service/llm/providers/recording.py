"""Records exchanges with models, a file for each request and its reply.

Written where `PALIMPSEST_RECORD` names a folder, for a case that fails: read once more by the
same code it shows what the service makes of it, and can be kept as a test. The files hold the
text of prompts and replies; keys are taken out.
"""

import json
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.llm.providers.failures import REMOVED
from service.llm.providers.native import NativeAnswer

VERSION = 1
#: A longer file is no exchange.
MAX_FILE_BYTES = 64 * 1024 * 1024
#: Arguments that are no part of what a model is asked.
_LEFT_OUT = frozenset({"api_key", "api_base", "logger_fn"})


class NoRecord(Exception):
    """A file that holds no exchange; the message is one sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedExchange:
    """One exchange, read back."""

    model: str
    ask: ModelRequest
    #: litellm's response as values; None where the request failed.
    response: dict[str, Any] | None
    #: Name, status and words of litellm's error.
    error: dict[str, Any] | None
    #: What the provider answered, as it came.
    native: NativeAnswer


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

    Neither `secrets` nor the values of the fields that are named by `extras` are in it.
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
        # As it stands in JSON.
        text = text.replace(json.dumps(secret, ensure_ascii=False)[1:-1], REMOVED)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{time.time_ns()}-{os.getpid()}-{ask.purpose.value}.json"
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
    """An exchange. Raises NoRecord."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        said = json.loads(raw) if len(raw) <= MAX_FILE_BYTES else None
    except OSError as error:
        raise NoRecord(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or said.get("version") != VERSION:
        raise NoRecord(f"{path} is no exchange that PALIMPSEST_RECORD wrote")
    try:
        native = _native(said["native"])
        return RecordedExchange(
            model=_text(said["model"]),
            ask=ModelRequest(
                purpose=Purpose(said["purpose"]),
                template=said["template"],
                segments=tuple(
                    Segment(kind=SegmentKind(one["kind"]), text=_text(one["text"]))
                    for one in said["segments"]
                ),
                max_output_tokens=said["max_output_tokens"],
                reply_schema=said["reply_schema"],
            ),
            response=_object(said["response"]),
            error=_object(said["error"]),
            native=native,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise NoRecord(f"{path} is no whole exchange: {error}") from None


def _native(said: object) -> NativeAnswer:
    if isinstance(said, list):
        # As records of a release before have it.
        reason, words = map(_text, said)
        said = {"reason": reason, "words": words, "status": None, "text": ""}
    if not isinstance(said, dict):
        raise TypeError("an object is missing")
    return NativeAnswer.recorded(said)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is missing")
    return value


def _object(value: object) -> dict[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise TypeError("an object is missing")
    return value
