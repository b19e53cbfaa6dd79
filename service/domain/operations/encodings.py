"""The forms in which a text may be stored: what a scan for the text looks for in bytes.

A long text is looked for by pieces, since files cut it: TOAST rows, pages and log lines. Each form
is a plain string of bytes, so a scan needs no parser, and finds the text inside of any format.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from urllib.parse import quote

#: Bytes of the shortest text that a scan looks for: shorter ones are found by chance.
MIN_BYTES = 6
#: Bytes of the longest text that a scan reads.
MAX_BYTES = 1024 * 1024
#: Characters of a piece of a longer text, and pieces of one text at most.
PIECE_CHARACTERS = 48
MAX_PIECES = 64
#: Characters from one piece to the next, where the text is not too long for that.
SPACING_CHARACTERS = 1000

#: Literals after which pglz, PostgreSQL's compression, writes a control byte.
_PGLZ_RUN = 8


def needles(text: str) -> Mapping[bytes, str]:
    """Returns what to look for, with the name of its encoding. Raises ValueError.

    The text as it is in UTF-8 comes first: of equal bytes the first name stays.
    """
    size = len(text.encode())
    if not MIN_BYTES <= size <= MAX_BYTES:
        said = f"the text has {size:,} bytes; a scan takes {MIN_BYTES} to {MAX_BYTES:,}"
        raise ValueError(said)
    found: dict[bytes, str] = {}
    for piece in _pieces(text):
        for name, needle in _forms(piece):
            if len(needle) >= MIN_BYTES:
                found.setdefault(needle, name)
    return found


def _pieces(text: str) -> Iterator[str]:
    """Yields the text, or evenly spaced pieces of it that are not blank."""
    if len(text) <= PIECE_CHARACTERS:
        yield text
        return
    last = len(text) - PIECE_CHARACTERS
    count = min(MAX_PIECES, 2 + last // SPACING_CHARACTERS)
    for number in range(count):
        begin = last * number // max(1, count - 1)
        piece = text[begin : begin + PIECE_CHARACTERS].strip()
        if len(piece.encode()) >= MIN_BYTES:
            yield piece


def _forms(piece: str) -> Iterator[tuple[str, bytes]]:
    raw = piece.encode()
    yield "UTF-8", raw
    for ascii_only in (True, False):
        # In a string of JSON, and of JSON within JSON.
        once = json.dumps(piece, ensure_ascii=ascii_only)[1:-1]
        twice = json.dumps(once, ensure_ascii=ascii_only)[1:-1]
        for said in (once, twice):
            yield "JSON", said.encode()
            yield "JSON in a dump", _in_dump(said).encode()
    yield "dump", _in_dump(piece).encode()
    yield "SQL", piece.replace("'", "''").encode()
    yield "URL", quote(piece, safe="").encode()
    yield "hex", raw.hex().encode()
    yield "hex", raw.hex().upper().encode()
    for name in ("utf-16-le", "utf-16-be"):
        yield name.upper(), piece.encode(name)
    yield from (("base64", needle) for needle in _base64(raw))
    yield from (("pglz", needle) for needle in _pglz(raw))


_COPY = str.maketrans(
    {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v"}
)


def _in_dump(said: str) -> str:
    """Returns a value as pg_dump writes it between COPY and its end."""
    return said.translate(_COPY)


def _base64(raw: bytes) -> Iterator[bytes]:
    """Yields what base64 makes of it at three alignments, in both alphabets."""
    for before in range(3):
        whole = len(raw) + before
        encoded = base64.b64encode(b"\0" * before + raw)
        # A character has six bits: those at the ends also have bits of the neighbours.
        first, end = (before * 8 + 5) // 6, whole * 8 // 6
        yield encoded[first:end]
        yield encoded[first:end].translate(bytes.maketrans(b"+/", b"-_"))


def _pglz(raw: bytes) -> Iterator[bytes]:
    """Yields it as pglz writes text without repetitions: a zero before each eight bytes."""
    if len(raw) <= _PGLZ_RUN:
        return
    for first in range(_PGLZ_RUN):
        runs = [
            raw[:first],
            *(raw[at : at + _PGLZ_RUN] for at in range(first, len(raw), _PGLZ_RUN)),
        ]
        yield b"\0".join(run for run in runs if run)
