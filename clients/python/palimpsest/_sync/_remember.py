# Generated from palimpsest/_async by `make sync`; do not edit.
"""Remembering conversations: appends of any length to a session that need not exist yet."""

import time
from collections.abc import Iterable
from typing import Unpack

from palimpsest._conversations import (
    Rememberable,
    append_requests,
    conversation_of,
    remembered_of,
    stored_in_part,
    stored_unread,
)
from palimpsest._convert import consistency
from palimpsest._errors import NotFound, PalimpsestError
from palimpsest._memories import MemoryInfo, MemoryStatus, memory
from palimpsest._sync._log import SessionLog
from palimpsest._transport import APPEND_SECONDS
from palimpsest._values_log import ChunkLabels, Remembered
from palimpsest.v1 import memory_service_pb2, session_service_pb2

#: Errors of a memory that will never read more; there is nothing to wait for.
_READS_NO_MORE = ("MEMORY_NOT_FOUND", "MEMORY_SEALED")


class SessionMessages(SessionLog):
    """The part of `Session` that is about conversations."""

    def remember(
        self,
        messages: Rememberable | Iterable[Rememberable],
        *,
        include_system: bool = False,
        request_id: str | None = None,
        wait: bool = False,
        timeout: float | None = None,
        **labels: Unpack[ChunkLabels],
    ) -> Remembered:
        """Stores a text, a message or a list of messages; creates the session if it is missing.

        Messages are mappings or objects as OpenAI's and Anthropic's clients have them, and all
        that `append` takes. A call of a tool and its result become one step of an agent, whose
        thought is what the model said before. Left out are messages without text, thoughts
        without a call, and, unless `include_system`, those of the system and the developer, which
        are the program's and not the user's. Images, audio and files are refused by the number of
        their message, before anything is sent. Long texts become several chunks. `labels` are the
        `thread`, `source`, `occurred_at` and `metadata` of all messages; a message may have its
        own, and its `name` is its source.

        All is durable when it returns, and stored once, however often the call has to be tried
        within `timeout` seconds (60). Each call stores what it is given: pass only the messages
        that are new. If the program itself may repeat a call, pass an id of the turn as
        `request_id`: the same messages under the same id are stored once for ever. With `wait` it
        also waits, within the same time, until all memories of the session have read them.

        Raises TypeError, ValueError and InvalidArgument that name the message, from 1, and
        AlreadyExists (REQUEST_CONTENT_CHANGED). After other errors something may be stored: the
        metadata has the `request_id` to continue with. Errors of waiting say that all is stored.
        """
        talk = conversation_of(messages, labels, include_system=include_system)
        requests = append_requests(self.id, talk.chunks, request_id)
        until = time.monotonic() + self._connection.seconds(timeout, APPEND_SECONDS)
        done: list[session_service_pb2.AppendResponse] = []
        for request in requests:
            try:
                done.append(self._append_or_create(request, until))
            except PalimpsestError as error:
                raise stored_in_part(error, requests, len(done)) from error
        remembered = remembered_of(talk, requests, done)
        if wait and done:
            try:
                self._wait_for_memories(remembered.read_token, until)
            except PalimpsestError as error:
                raise stored_unread(error, remembered) from error
        return remembered

    def _append_or_create(
        self, request: session_service_pb2.AppendRequest, until: float
    ) -> session_service_pb2.AppendResponse:
        """Appends; creates the session if it is missing."""
        try:
            return self._append_until(request, until)
        except NotFound as error:
            if error.reason != "SESSION_NOT_FOUND":
                raise
        self.create(exist_ok=True)
        return self._append_until(request, until)

    def _append_until(
        self, request: session_service_pb2.AppendRequest, until: float
    ) -> session_service_pb2.AppendResponse:
        method = self._connection.sessions.Append
        left = max(until - time.monotonic(), 0.0)
        response: session_service_pb2.AppendResponse = self._connection.call(
            method, request, timeout=left, broken=True
        )
        return response

    def _wait_for_memories(self, read_token: str, until: float) -> None:
        """Waits until each memory of the session has read what the token stands for."""
        listing = memory_service_pb2.ListMemoriesRequest(session=self.id)
        method = self._connection.memories.ListMemories
        waited: list[MemoryInfo] = [
            one for one in self._connection.all_of(method, listing, "memories", memory)
        ]
        for info in waited:
            if info.status is MemoryStatus.SEALED:
                continue
            request = memory_service_pb2.GetMemoryRequest(
                session=self.id, memory=info.id, consistency=consistency(read_token, False)
            )
            left = max(until - time.monotonic(), 0.0)
            try:
                self._connection.call(self._connection.memories.GetMemory, request, timeout=left)
            except PalimpsestError as error:
                if error.reason not in _READS_NO_MORE:
                    raise
