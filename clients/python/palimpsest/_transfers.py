"""Files of exported sessions, for both faces of the client."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

#: Bytes of lines in one message.
DATA_BYTES = 512 * 1024
#: The first line, in bytes.
MAX_HEADER_BYTES = 16 * 1024
#: A line, in bytes; the service writes none as long.
MAX_LINE_BYTES = 16 * 1024 * 1024
#: How the lines begin after which an export can be continued, and its last line.
_CHECK, _END = b'{"record":"check"', b'{"record":"end"'


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferProgress:
    """How far an export or an import is."""

    #: Bytes of lines, from the beginning of the file.
    bytes: int
    #: Lines, the header included.
    lines: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportPoint:
    """Where an interrupted export continues: in the export, and in its file."""

    export_id: str
    #: The line of the last check.
    check_line: bytes
    #: Bytes and lines of the file up to the end of that line.
    bytes: int
    lines: int


class LineReader:
    """Cuts what an export sends into blocks that end with a check."""

    def __init__(self, after: ExportPoint | None = None) -> None:
        self.export_id = after.export_id if after else ""
        self.point = after
        self.bytes = after.bytes if after else 0
        self.lines = after.lines if after else 0
        self.is_ended = False
        self._block = bytearray()
        self._read = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the complete blocks, the header as one, after which an export can continue."""
        self._block += data
        while (end := self._block.find(b"\n", self._read)) >= 0:
            line = bytes(self._block[self._read : end + 1])
            self._read = end + 1
            self.lines += 1
            if not self.export_id:
                self.export_id = str(json.loads(line)["export_id"])
            self.is_ended = line.startswith(_END)
            if line.startswith(_CHECK) or self.is_ended:
                block, self._block = bytes(self._block[: self._read]), self._block[self._read :]
                self.bytes, self._read = self.bytes + len(block), 0
                self.point = ExportPoint(
                    export_id=self.export_id,
                    check_line=line,
                    bytes=self.bytes,
                    lines=self.lines,
                )
                yield block

    def restart(self) -> None:
        """Forgets what came after the last complete block."""
        self._block, self._read = bytearray(), 0
        self.lines = self.point.lines if self.point else 0
        if self.point is None:
            self.export_id = ""


def export_point(path: Path, session: str) -> tuple[ExportPoint | None, bool]:
    """Returns where the export in a file continues, and whether it is complete.

    None: the file does not exist, or has not one complete block. Raises ValueError for a file
    with other content.
    """
    if not path.exists() or not path.stat().st_size:
        return None, False
    reader = LineReader()
    with path.open("rb") as file:
        header = file.readline(MAX_HEADER_BYTES)
        if not header.endswith(b"\n"):
            # It was interrupted within the header.
            if header[:1] != b"{" or len(header) == MAX_HEADER_BYTES:
                raise ValueError(f"{path} has other content than an export: name another file")
            return None, False
        if header_of(header)["session"] != session:
            raise ValueError(f"{path} has an export of another session: name another file")
        file.seek(0)
        while data := file.read(DATA_BYTES):
            for _ in reader.feed(data):
                pass
    return reader.point, reader.is_ended


def header_of(line: bytes) -> dict[str, object]:
    """Returns the header of an export. Raises ValueError."""
    try:
        header = json.loads(line)
        if header["record"] == "header" and isinstance(header["session"], str):
            return dict(header)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise ValueError("the file is no export of a session: its first line is no header")


def read_header(file: BinaryIO) -> bytes:
    """Returns the first line. Raises ValueError."""
    line = file.readline(MAX_HEADER_BYTES)
    header_of(line)
    return line


def data_after(file: BinaryIO, line: int) -> Iterator[bytes]:
    """Yields the bytes of a file after a line, in parts; the file is after its first line.

    Raises ValueError when it has fewer lines.
    """
    for number in range(2, line + 1):
        if not file.readline(MAX_LINE_BYTES).endswith(b"\n"):
            raise ValueError(
                f"the import was continued with a shorter file: it ends before line {number}"
            )
    while data := file.read(DATA_BYTES):
        yield data


def open_input(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens the file of an export for its import."""
    return Path(path).open("rb")


def discard_empty(path: Path) -> None:
    """Removes the file of an export that was refused before its first block; never a device."""
    if path.is_file() and not path.stat().st_size:
        path.unlink()


def open_output(path: Path, point: ExportPoint | None) -> BinaryIO:
    """Opens the file of an export, after what it has already; only its owner may read it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    file = os.fdopen(descriptor, "r+b")
    # It fails for a device, whose mode must stay.
    file.truncate(point.bytes if point else 0)
    if os.chmod in os.supports_fd:
        os.chmod(descriptor, 0o600)
    file.seek(0, os.SEEK_END)
    return file
