"""Replays a reading with the replies that its events recorded."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from service.domain.answers.trajectory import Emit, Event, EventKind
from service.domain.prompting.flows import FetchingFlow, ModelReply, ModelRequest


class NotReplayable(Exception):
    """The events are not those of a reader of this release; one sentence."""


def own_events(events: Iterable[Event], before: int = 0) -> Sequence[Event]:
    """Returns the events of the last reader of an answer, numbered from 1.

    `before` it came the events of a choice and of an earlier reader. After it the answer may
    have been shaped.
    """
    return [
        replace(event, ordinal=event.ordinal - before)
        for event in events
        if event.ordinal > before and event.kind is not EventKind.SHAPING
    ]


def prompts_of(
    flow: FetchingFlow[Any], events: Iterable[Event]
) -> FetchingFlow[tuple[tuple[Event, ModelRequest], ...]]:
    """Returns each event of a model call with the prompt of that call, in order.

    Yields only what `flow` fetches, so that the same driver can run it. Raises NotReplayable
    if `events` are not those of `flow`: another release made them, or from another text.
    """
    recorded = deque(events)
    replies = deque(event for event in recorded if event.template)
    open_asks: deque[ModelRequest] = deque()
    found: list[tuple[Event, ModelRequest]] = []
    try:
        batch = next(flow)
        while True:
            asks = [ask for ask in batch if isinstance(ask, ModelRequest)]
            fetches = [ask for ask in batch if not isinstance(ask, ModelRequest | Emit)]
            held = iter((yield fetches)) if fetches else iter(())
            open_asks.extend(asks)
            answers: list[Any] = []
            for ask in batch:
                match ask:
                    case ModelRequest():
                        answers.append(_reply(ask, replies))
                    case Emit(event=event):
                        if not recorded or recorded.popleft() != event:
                            raise NotReplayable(f"event {event.ordinal} is not as it was recorded")
                        if event.template:
                            found.append((event, open_asks.popleft()))
                        answers.append(None)
                    case _:
                        answers.append(next(held))
            batch = flow.send(answers)
    except StopIteration:
        return tuple(found)
    finally:
        flow.close()


def _reply(ask: ModelRequest, replies: deque[Event]) -> ModelReply:
    if not replies or replies[0].template != ask.template:
        raise NotReplayable(f"no reply to {ask.template} was recorded where it was asked")
    event = replies.popleft()
    return ModelReply(
        text=event.reply,
        model="",
        input_tokens=event.input_tokens,
        cached_tokens=event.cached_tokens,
        output_tokens=event.output_tokens,
        end=event.end,
    )
