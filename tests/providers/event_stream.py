"""AWS's event streams: messages of headers and a payload, with checksums.

The format: Amazon Transcribe's docs, "Event stream encoding"; botocore's `eventstream.py`.
"""

import json
import struct
import zlib

#: Of a header's value: text, with its length in two bytes.
_TEXT = 7


def message(kind: str, payload: object, *, is_error: bool = False) -> bytes:
    """Returns one message; `kind` is the type of the event, or of the exception."""
    named = {
        ":exception-type" if is_error else ":event-type": kind,
        ":content-type": "application/json",
        ":message-type": "exception" if is_error else "event",
    }
    headers = b"".join(_header(name, value) for name, value in named.items())
    body = json.dumps(payload).encode()
    # Lengths of all and of the headers, their checksum, and at the end that of all before it.
    prelude = struct.pack(">II", 16 + len(headers) + len(body), len(headers))
    prelude += struct.pack(">I", zlib.crc32(prelude))
    whole = prelude + headers + body
    return whole + struct.pack(">I", zlib.crc32(whole))


def _header(name: str, value: str) -> bytes:
    said = value.encode()
    return bytes([len(name)]) + name.encode() + struct.pack(">BH", _TEXT, len(said)) + said
