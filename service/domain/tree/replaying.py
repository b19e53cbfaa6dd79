"""Replaying: a navigation again, with the replies that its events recorded."""

from collections import deque
from collections.abc import Iterable
from typing import Any

from service.domain.flows import LookingFlow, ModelAsk, ModelReply
from service.domain.trajectory import (
    Event,
    Tell,
)
from service.domain.tree.trajectory import Navigation


class NotReplayable(Exception):
    """Events that a navigation of this release would not tell; one sentence."""


def prompts_of(
    flow: LookingFlow[Navigation], events: Iterable[Event]
) -> LookingFlow[tuple[tuple[Event, ModelAsk], ...]]:
    """Each event of a model call with the prompt of that call, in order.

    Yields what `flow` looks up in the tree, and nothing else, so that whatever drives
    navigations drives it too. Raises NotReplayable where the events are not those of
    `flow`: another release made them, or they are of another tree.
    """
    recorded = deque(events)
    replies = deque(event for event in recorded if event.template)
    open_asks: deque[ModelAsk] = deque()
    found: list[tuple[Event, ModelAsk]] = []
    try:
        batch = next(flow)
        while True:
            asks = [ask for ask in batch if isinstance(ask, ModelAsk)]
            lookups = [ask for ask in batch if not isinstance(ask, ModelAsk | Tell)]
            held = iter((yield lookups)) if lookups else iter(())
            open_asks.extend(asks)
            answers: list[Any] = []
            for ask in batch:
                match ask:
                    case ModelAsk():
                        answers.append(_reply(ask, replies))
                    case Tell(event=event):
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


def _reply(ask: ModelAsk, replies: deque[Event]) -> ModelReply:
    if not replies or replies[0].template != ask.template:
        raise NotReplayable(f"no reply to {ask.template} was recorded where it was asked")
    event = replies.popleft()
    return ModelReply(
        text=event.reply,
        model="",
        input_tokens=event.input_tokens,
        cached_tokens=event.cached_tokens,
        output_tokens=event.output_tokens,
    )
