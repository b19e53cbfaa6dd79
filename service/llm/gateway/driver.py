"""Runs flows against a model."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from service.domain.prompting.flows import FetchingFlow, ModelRequest
from service.llm.offloading import beside

T = TypeVar("T")
Request = TypeVar("Request")
Reply = TypeVar("Reply")


class WindowPassed(Exception):
    """A flow exceeded the window that it was given: a defect of the flow."""


async def drive(
    flow: Generator[Sequence[Request], Sequence[Reply], T],
    call: Callable[[Request], Awaitable[Reply]],
    *,
    limit: int | None = None,
) -> T:
    """Runs `flow` to its end: each batch of requests in parallel, replies in their order.

    The flow itself runs in a thread, since it takes time to build prompts of a large memory and to
    read replies. At most `limit` requests of a batch are in progress at once; they begin in their
    order. When a call fails, the others of its batch are cancelled and the flow is closed.
    """
    try:
        step = await beside(_step, flow, None)
        while not isinstance(step, _FlowResult):
            step = await beside(_step, flow, await _answer(step, call, limit))
        return step.result
    finally:
        flow.close()


@dataclass(frozen=True, slots=True)
class _FlowResult(Generic[T]):
    """The result of a flow."""

    result: T


def _step(
    flow: Generator[Sequence[Request], Sequence[Reply], T], replies: Sequence[Reply] | None
) -> Sequence[Request] | _FlowResult[T]:
    """Returns the next requests of a flow; None for replies begins it."""
    try:
        sent: Any = replies
        return flow.send(sent)
    except StopIteration as end:
        # A future cannot raise StopIteration.
        return _FlowResult(end.value)


def within(
    flow: FetchingFlow[T], window_tokens: int, count: Callable[[str], int]
) -> FetchingFlow[T]:
    """Yields the requests of `flow`; raises WindowPassed for one that exceeds the window.

    A prompt and its reply together have to fit. Nothing of a batch is sent if one does not.
    """
    try:
        requests = next(flow)
        while True:
            for one in requests:
                if isinstance(one, ModelRequest):
                    _check(one, window_tokens, count)
            requests = flow.send((yield requests))
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        flow.close()


def _check(request: ModelRequest, window_tokens: int, count: Callable[[str], int]) -> None:
    tokens = count(request.text)
    if tokens + request.max_output_tokens > window_tokens:
        raise WindowPassed(
            f"a prompt of {request.template} takes {tokens} tokens and its reply up to"
            f" {request.max_output_tokens}: more than the window of {window_tokens}"
        )


async def _answer(
    requests: Sequence[Request], call: Callable[[Request], Awaitable[Reply]], limit: int | None
) -> Sequence[Reply]:
    if len(requests) == 1:
        return [await call(requests[0])]
    # A semaphore is first in, first out.
    free = nullcontext() if limit is None else asyncio.Semaphore(limit)

    async def one(request: Request) -> Reply:
        async with free:
            return await call(request)

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one(request)) for request in requests]
    except* Exception as group:
        # Callers handle the error, not the group that contains it.
        raise group.exceptions[0] from None
    return [task.result() for task in running]
