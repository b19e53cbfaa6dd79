"""Listening to an answer: what a stream tells, across connections that are lost."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio

from palimpsest import answer_convert, tracing
from palimpsest.answer_values import Answer, Event, Reading, TextPiece
from palimpsest.connection import (
    BACKOFF_SECONDS,
    MAX_CALL_SECONDS,
    SLACK_SECONDS,
    Connection,
    is_unbegun,
    pause_seconds,
)
from palimpsest.errors import PalimpsestError, ResourceExhausted, Unavailable, from_rpc
from palimpsest.navigation_values import TrajectoryEvent
from palimpsest.v1 import answers_pb2, answers_pb2_grpc

#: The longest wait between two tries to listen on.
MAX_BACKOFF_SECONDS = 5.0


@dataclass(slots=True)
class Heard:
    """How much of an answer was heard."""

    #: Empty until it is being made.
    answer_id: str = ""
    #: Ordinals of the last event and the last piece of text.
    event: int = 0
    piece: int = 0

    def note(self, event: Event) -> bool:
        """Whether the event is new."""
        match event:
            case Reading():
                new = not self.answer_id
                self.answer_id = event.answer_id
                return new
            case TrajectoryEvent():
                new, self.event = event.ordinal > self.event, max(event.ordinal, self.event)
                return new
            case TextPiece():
                new, self.piece = event.ordinal > self.piece, max(event.ordinal, self.piece)
                return new
        return True


class Listening:
    """Hears an answer until it has ended or the time is up.

    Once the answer is being made a lost connection only interrupts it: the service is asked
    for what was not heard, so that each event is heard once.
    """

    def __init__(self, client: Connection, session: str, timeout: float) -> None:
        self._client = client
        self._session = session
        self._stub = answers_pb2_grpc.AnswerServiceStub(client.channel)
        self._timeout = min(timeout, MAX_CALL_SECONDS)
        self._until = asyncio.get_running_loop().time() + self._timeout
        self._wait = BACKOFF_SECONDS

    async def ask(self, request: answers_pb2.AskRequest) -> AsyncIterator[Event | Answer]:
        """What is told of a question; the answer comes last. Raises PalimpsestError."""
        heard = Heard()
        try:
            async for response in self._client.responses(
                self._stub.Ask, request, timeout=self._timeout
            ):
                told = _told(response)
                if isinstance(told, Answer) or (told is not None and heard.note(told)):
                    yield told
                if isinstance(told, Answer):
                    return
        except aio.AioRpcError as error:
            await self._pause(error, heard)
        async for event in self.resume(heard):
            yield event

    async def resume(self, heard: Heard) -> AsyncIterator[Event | Answer]:
        """What was not heard yet of an answer. Raises PalimpsestError."""
        if not heard.answer_id:
            raise PalimpsestError("the service ended the call without an answer")
        while True:
            request = answers_pb2.ResumeAnswerRequest(
                session=self._session,
                answer_id=heard.answer_id,
                after_event=heard.event,
                after_text=heard.piece,
            )
            try:
                async for response in self._stub.ResumeAnswer(
                    request, timeout=self._left(), **tracing.options()
                ):
                    told = _told(response.response)
                    if isinstance(told, Answer) or (told is not None and heard.note(told)):
                        # It works again.
                        self._wait = BACKOFF_SECONDS
                        yield told
                    if isinstance(told, Answer):
                        return
            except aio.AioRpcError as error:
                await self._pause(error, heard)
                continue
            raise PalimpsestError("the service ended the call without an answer")

    async def _pause(self, error: aio.AioRpcError, heard: Heard) -> None:
        """Waits before the next try; raises where there is none."""
        known = from_rpc(error, self._client.address)
        pause = pause_seconds(self._wait, known)
        time_is_up = asyncio.get_running_loop().time() + pause > self._until
        if not heard.answer_id or time_is_up or not _may_pass(error, known):
            raise known from error
        await asyncio.sleep(pause)
        self._wait = min(self._wait * 2, MAX_BACKOFF_SECONDS)

    def _left(self) -> float:
        left = self._until - asyncio.get_running_loop().time()
        return max(left, 0.001) + SLACK_SECONDS


def _may_pass(error: aio.AioRpcError, known: PalimpsestError) -> bool:
    if isinstance(known, ResourceExhausted):
        # The server's waiting room is full, or the answer's budget is used up.
        return is_unbegun(known)
    # A server that stops cancels what it has under way, and gives no reason.
    stopped = error.code() is grpc.StatusCode.CANCELLED and not known.reason
    return stopped or isinstance(known, Unavailable)


def _told(response: Any) -> Event | Answer | None:
    if response.WhichOneof("event") == "answer":
        return answer_convert.answer(response.answer)
    return answer_convert.heard(response)
