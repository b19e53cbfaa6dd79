# Generated from palimpsest/_async by `make sync`; do not edit.
"""Exports and imports of sessions."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from palimpsest._errors import Aborted, PalimpsestError
from palimpsest._sync._connection import Connection
from palimpsest._sync._runtime import Condition, RpcError, sleep
from palimpsest._transfers import (
    ExportPoint,
    LineReader,
    TransferProgress,
    data_after,
    discard_empty,
    export_point,
    open_output,
    read_header,
)
from palimpsest._transport import STREAM_BACKOFF_SECONDS, Backoff, may_pass
from palimpsest.v1 import session_service_pb2

#: Tries in a row without any progress.
MAX_TRIES = 8
#: Is called after each block.
OnProgress = Callable[[TransferProgress], None]

_Request = session_service_pb2.ImportSessionRequest


def export_blocks(
    connection: Connection, session: str, after: ExportPoint | None
) -> Iterator[tuple[bytes, LineReader]]:
    """Yields the blocks of an export, and continues it when the connection is lost."""
    reader = LineReader(after)
    backoff, tries = Backoff(STREAM_BACKOFF_SECONDS), 0
    while True:
        request = session_service_pb2.ExportSessionRequest(session=session)
        if reader.point is not None:
            request.resume.export_id = reader.point.export_id
            request.resume.check_line = reader.point.check_line
        call = connection.sessions.ExportSession(request, **connection.headers())
        try:
            for response in call:
                for block in reader.feed(response.data):
                    backoff, tries = Backoff(STREAM_BACKOFF_SECONDS), 0
                    yield block, reader
            return
        except RpcError as error:
            known = connection.reach.failure(error)
            tries += 1
            if not may_pass(known, error.code()) or tries >= MAX_TRIES:
                raise known from error
            reader.restart()
        finally:
            call.cancel()
        sleep(backoff.pause_seconds(known))


def export_file(
    connection: Connection,
    session: str,
    path: str | os.PathLike[str],
    progress: OnProgress | None,
) -> None:
    """Writes an export to a file, and continues one that is not complete."""
    point, is_complete = export_point(Path(path), session)
    if is_complete:
        return
    try:
        with open_output(Path(path), point) as file:
            for block, reader in export_blocks(connection, session, point):
                file.write(block)
                if progress is not None:
                    progress(TransferProgress(bytes=reader.bytes, lines=reader.lines))
            file.flush()
            os.fsync(file.fileno())
    except PalimpsestError:
        discard_empty(Path(path))
        raise


class Upload:
    """Sends the file of an export, in one stream or several."""

    def __init__(
        self,
        connection: Connection,
        file: BinaryIO,
        session: str,
        progress: OnProgress | None,
        restore_deleted: bool = False,
    ) -> None:
        self._connection = connection
        self._file = file
        self._session = session
        self._progress = progress
        self._restore_deleted = restore_deleted
        #: The last line that is durable; None: the stream is not opened.
        self._through: int | None = None
        self._over = False
        #: What the file is refused for before the service sees it.
        self._failure: ValueError | None = None
        self._changed = Condition()

    def run(self) -> None:
        """Imports the file. Raises PalimpsestError, ValueError."""
        backoff, tries, reached = Backoff(STREAM_BACKOFF_SECONDS), 0, 0
        while True:
            try:
                return self._send()
            except RpcError as error:
                known = self._connection.reach.failure(error)
                tries = 0 if (self._through or 0) > reached else tries + 1
                reached = self._through or 0
                again = may_pass(known, error.code()) or (
                    isinstance(known, Aborted) and known.reason == "IMPORT_CONFLICT" and reached
                )
                if self._failure is not None:
                    raise self._failure from error
                if not again or tries >= MAX_TRIES:
                    raise known from error
            sleep(backoff.pause_seconds(known))

    def _send(self) -> None:
        self._through, self._over = None, False
        call = self._connection.sessions.ImportSession(self._frames(), **self._connection.headers())
        try:
            for response in call:
                self._receive(response)
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()
            call.cancel()

    def _receive(self, response: Any) -> None:
        frame = response.WhichOneof("frame")
        if frame == "session":
            return
        with self._changed:
            self._through = getattr(response, frame).through_line
            self._changed.notify_all()
        if self._progress is not None:
            lines = self._through or 0
            self._progress(TransferProgress(bytes=self._file.tell(), lines=lines))

    def _frames(self) -> Iterator[_Request]:
        self._file.seek(0)
        header = read_header(self._file)
        opening = _Request.Open(
            session=self._session, header=header, restore_deleted=self._restore_deleted
        )
        yield _Request(open=opening)
        with self._changed:
            while self._through is None and not self._over:
                self._changed.wait(1.0)
            after = self._through
        if after is None:
            return
        try:
            for data in data_after(self._file, after):
                if self._over:
                    return
                yield _Request(data=data)
        except ValueError as error:
            self._failure = error
            raise


def is_imported(connection: Connection, session: str, export_id: object) -> bool:
    """Returns whether a session is there that this export made."""
    request = session_service_pb2.GetSessionRequest(session=session)
    try:
        found = connection.call(connection.sessions.GetSession, request)
    except PalimpsestError:
        return False
    return bool(found.imported_from.export_id == export_id)
