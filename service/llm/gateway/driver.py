"""The driver: runs a flow against a model."""

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
    """A flow asked for more than the window that it was given: a defect of the flow."""


async def drive(
    flow: Generator[Sequence[Request], Sequence[Reply], T],
    call: Callable[[Request], Awaitable[Reply]],
    *,
    limit: int | None = None,
) -> T:
    """Runs `flow` to its end: each batch of requests in parallel, replies in their order.

    The flow itself runs beside the event loop: of a large memory it takes a moment to build
    prompts and to read replies. With a `limit`, 1 or more, at most so many requests of a batch are
    under way at once; they begin in their order. When a call fails the others of its batch are
    cancelled, the flow is closed and the error is raised.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"a limit of {limit} asks at once; it is at least 1")
    try:
        step = await beside(_step, flow, None)
        while not isinstance(step, _FlowResult):
            step = await beside(_step, flow, await _answer(step, call, limit))
        return step.result
    finally:
        flow.close()


@dataclass(frozen=True, slots=True)
class _FlowResult(Generic[T]):
    """A flow is done."""

    result: T


def _step(
    flow: Generator[Sequence[Request], Sequence[Reply], T], replies: Sequence[Reply] | None
) -> Sequence[Request] | _FlowResult[T]:
    """What a flow asks next; None for replies begins it."""
    try:
        sent: Any = replies
        return flow.send(sent)
    except StopIteration as end:
        # No future takes it.
        return _FlowResult(end.value)


def within(
    flow: FetchingFlow[T], window_tokens: int, count: Callable[[str], int]
) -> FetchingFlow[T]:
    """`flow`, but no ask of it passes a window of so many tokens, prompt and reply together.

    The look-ups go through as they are. Raises WindowPassed before anything of a batch is
    asked when one of its prompts is too long.
    """
    try:
        asks = next(flow)
        while True:
            for ask in asks:
                if isinstance(ask, ModelRequest):
                    _check(ask, window_tokens, count)
            asks = flow.send((yield asks))
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        flow.close()


def _check(ask: ModelRequest, window_tokens: int, count: Callable[[str], int]) -> None:
    tokens = count(ask.text)
    if tokens + ask.max_output_tokens > window_tokens:
        raise WindowPassed(
            f"a prompt of {ask.template} takes {tokens} tokens and its reply up to"
            f" {ask.max_output_tokens}: more than the window of {window_tokens}"
        )


async def _answer(
    asks: Sequence[Request], call: Callable[[Request], Awaitable[Reply]], limit: int | None
) -> Sequence[Reply]:
    if len(asks) == 1:
        return [await call(asks[0])]
    # A semaphore wakes in the order in which it was asked.
    free = nullcontext() if limit is None else asyncio.Semaphore(limit)

    async def one(ask: Request) -> Reply:
        async with free:
            return await call(ask)

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one(ask)) for ask in asks]
    except* Exception as group:
        # Callers know the error, not the group that it came in.
        raise group.exceptions[0] from None
    return [task.result() for task in running]
