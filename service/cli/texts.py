"""Reading texts for ingestion, and cutting them into chunks."""

import sys
from collections.abc import Iterator
from pathlib import Path

from palimpsest.schemas import MAX_JSON_BYTES, MAX_SOURCE_BYTES
from palimpsest.specs import JsonText
from service.cli.output import CommandError

#: A chunk of the command line's, in characters. Small enough that a citation points
#: somewhere, large enough that a step has something to read.
CHUNK_CHARACTERS = 2000


def read_text(name: str, most: int | None = None) -> str:
    """A file's text, or standard input's for "-"; of at most so many bytes.

    Raises CommandError.
    """
    shown = "standard input" if name == "-" else name
    size = -1 if most is None else most + 1
    try:
        if name == "-":
            raw = sys.stdin.buffer.read(size)
        else:
            with Path(name).open("rb") as file:
                raw = file.read(size)
    except OSError as error:
        raise CommandError(f"cannot read {name}: {error.strerror}") from error
    if most is not None and len(raw) > most:
        raise CommandError(f"{shown} has more than {most} bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CommandError(
            f"{shown} is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}"
        ) from error
    if "\0" in text:
        raise CommandError(f"{shown} holds a NUL character at {text.index(chr(0))}; is it text?")
    if not text.strip():
        raise CommandError(f"{shown} has no text")
    return text


def read_schema(name: str) -> str:
    """A schema's file, as the client takes it. Raises CommandError.

    What begins with { is JSON Schema: class source never does, and has to be shorter.
    """
    text = read_text(name, MAX_JSON_BYTES)
    if text.lstrip().startswith("{"):
        return JsonText(text)
    if len(text.encode()) > MAX_SOURCE_BYTES:
        shown = "standard input" if name == "-" else name
        raise CommandError(f"{shown} has more than {MAX_SOURCE_BYTES} bytes of class source")
    return text


def split(text: str, characters: int = CHUNK_CHARACTERS) -> Iterator[str]:
    """A text in chunks of at most `characters`, cut behind blank lines, lines or words.

    Together they are the text, but for white space at its ends and more of it in one place
    than a chunk may have.
    """
    text = text.replace("\r\n", "\n").strip()
    start = 0
    while start < len(text):
        end = _cut(text, start, characters)
        piece = text[start:end]
        if not piece.isspace():
            yield piece
        start = end


def _cut(text: str, start: int, characters: int) -> int:
    limit = start + characters
    if limit >= len(text):
        return len(text)
    # A cut in the first half would leave needlessly small chunks.
    least = start + characters // 2
    for border in ("\n\n", "\n", " "):
        at = text.rfind(border, least, limit)
        if at >= 0:
            return at + len(border)
    return limit
