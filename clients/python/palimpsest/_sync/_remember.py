# Generated from palimpsest/_async by `make sync`; do not edit.
"""Remembering conversations, and recalling what fits them; the session need not exist yet."""

import time
from collections.abc import Collection, Iterable
from typing import Unpack

from palimpsest._conversations import (
    Rememberable,
    append_requests,
    conversation_of,
    remembered_of,
    stored_in_part,
    stored_unread,
)
from palimpsest._convert import consistency, message_of
from palimpsest._convert_chunks import chunk_filter
from palimpsest._errors import Aborted, AlreadyExists, NotFound, PalimpsestError
from palimpsest._memories import MemoryInfo, MemoryStatus, memory
from palimpsest._recall import NOTHING, Recalled, RecallSection, query_of, recalled
from palimpsest._search import SearchMode
from palimpsest._sync._log import SessionLog
from palimpsest._sync._runtime import sleep
from palimpsest._transport import APPEND_SECONDS, BACKOFF_SECONDS, Backoff, left_seconds
from palimpsest._values_log import ChunkFilterOptions, ChunkLabels, Remembered
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

        Raises TypeError, ValueError and InvalidArgument that name the message, from 1,
        AlreadyExists (REQUEST_CONTENT_CHANGED), and Aborted (BEING_DELETED) when a deleted session
        of this id is still being removed at the end of that time. After other errors something
        may be stored: the metadata has the `request_id` to continue with. Errors of waiting say
        that all is stored; a stalled memory does not end the wait for the others.
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

    def recall(
        self,
        query: Rememberable | Iterable[Rememberable] = "",
        *,
        tokens: int = 0,
        memories: Collection[str] = (),
        sections: Collection[RecallSection] = (),
        mode: SearchMode = "auto",
        from_position: int = 0,
        to_position: int = 0,
        after: str = "",
        fully_applied: bool = False,
        timeout: float | None = None,
        **options: Unpack[ChunkFilterOptions],
    ) -> Recalled:
        """Returns what the session knows that fits a query: `str()` of it is a text for a prompt.

        The query is a text, or messages as `remember` takes them: then it is the last one of the
        user, with what was said just before, without images and other parts that are no text.
        Without a query it is the newest messages of the session. The text has at most `tokens`
        (0: 1,000), counted as four bytes each: entries of `memories` (default: the memory
        "default", else all), the chunks that fit best, and the newest ones, which no memory has
        read; `sections` names some of them. No language model is asked.

        `from_position`, `to_position` and `options` limit the chunks; `options` are those of
        `palimpsest.ChunkFilterOptions`: a program that sends the current conversation anyway leaves
        out its thread by `excluded_threads`. What was remembered before is seen at once. With the
        token `after`, or with `fully_applied`, it also waits, up to `timeout`, until memories and
        index have applied it.

        Of a session that does not exist nothing is known, which is no error. Raises NotFound for
        `memories` that do not exist, InvalidArgument, TypeError, ValueError, FailedPrecondition
        (VECTORS_UNAVAILABLE; a stalled memory), DeadlineExceeded (NOT_APPLIED_IN_TIME),
        ResourceExhausted.
        """
        request = message_of(
            session_service_pb2.RecallRequest,
            session=self.id,
            query=query_of(query),
            max_tokens=tokens,
            memories=memories,
            sections=sections,
            mode=mode,
            filter=chunk_filter(from_position=from_position, to_position=to_position, **options),
            consistency=consistency(after, fully_applied),
        )
        method = self._connection.sessions.Recall
        try:
            return recalled(self._connection.call(method, request, timeout=timeout))
        except NotFound as error:
            if error.reason != "SESSION_NOT_FOUND" or memories or after:
                raise
        return NOTHING

    def _append_or_create(
        self, request: session_service_pb2.AppendRequest, until: float
    ) -> session_service_pb2.AppendResponse:
        """Appends; creates the session if it is missing."""
        try:
            return self._append_until(request, until)
        except NotFound as error:
            if error.reason != "SESSION_NOT_FOUND":
                raise
        self._create_until(until)
        return self._append_until(request, until)

    def _create_until(self, until: float) -> None:
        """Creates the session unless it exists; waits while a deleted one is being removed."""
        request = session_service_pb2.CreateSessionRequest(
            session=session_service_pb2.Session(id=self.id)
        )
        method = self._connection.sessions.CreateSession
        backoff = Backoff(BACKOFF_SECONDS)
        while True:
            try:
                self._connection.call(method, request, timeout=left_seconds(until))
                return
            except AlreadyExists as error:
                if error.reason == "SESSION_EXISTS":
                    return
                raise
            except Aborted as error:
                pause = backoff.pause_seconds(error)
                if error.reason != "BEING_DELETED" or pause > left_seconds(until):
                    raise
            sleep(pause)

    def _append_until(
        self, request: session_service_pb2.AppendRequest, until: float
    ) -> session_service_pb2.AppendResponse:
        method = self._connection.sessions.Append
        response: session_service_pb2.AppendResponse = self._connection.call(
            method, request, timeout=left_seconds(until), broken=True
        )
        return response

    def _wait_for_memories(self, read_token: str, until: float) -> None:
        """Waits until each memory of the session has read what the token stands for.

        One that cannot does not end the wait for the others. Raises the first error.
        """
        listing = memory_service_pb2.ListMemoriesRequest(session=self.id)
        method = self._connection.memories.ListMemories
        listed = self._connection.all_of(method, listing, "memories", memory, until=until)
        waited: list[MemoryInfo] = [one for one in listed]
        first: PalimpsestError | None = None
        for info in waited:
            if first is not None and not left_seconds(until):
                break
            if info.status is MemoryStatus.SEALED:
                continue
            request = memory_service_pb2.GetMemoryRequest(
                session=self.id, memory=info.id, consistency=consistency(read_token, False)
            )
            try:
                self._connection.call(
                    self._connection.memories.GetMemory, request, timeout=left_seconds(until)
                )
            except PalimpsestError as error:
                if error.reason not in _READS_NO_MORE:
                    first = first or error
        if first is not None:
            raise first
