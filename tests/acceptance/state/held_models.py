"""Models that wait before a reply, so that something can happen meanwhile."""

import asyncio
import threading
from dataclasses import dataclass, field
from typing import TypeVar

from tests.support.fake_model import FakeModel
from tests.support.harness import worker

T = TypeVar("T")


@dataclass
class HeldModel:
    """A fake model that holds still before one of its replies."""

    model: FakeModel
    #: The reply that waits, from 1, until `go` is set.
    stop_at: int = 0
    waiting: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.model.reply = self.reply

    def reply(self, number: int) -> str:
        """Returns what it says to the n-th prompt, from 1."""
        raise NotImplementedError

    def hold(self) -> None:
        """Waits until it may continue."""
        self.waiting.set()
        self.go.wait(150)

    async def until_held(self) -> None:
        """Waits until it holds still."""
        assert await asyncio.to_thread(self.waiting.wait, 150), "the model was asked"


async def finished_by_another(asking: asyncio.Task[T], url: str, settings: dict[str, str]) -> T:
    """Returns what was asked for, once another worker has made it."""
    another = worker(url, **settings)
    await asyncio.to_thread(another.__enter__)
    try:
        return await asking
    finally:
        await asyncio.to_thread(another.__exit__, None, None, None)
