"""Receives the events of a question while its answer is made."""

import asyncio

import palimpsest
from palimpsest import Reading, TrajectoryEvent


class Hearing:
    """Receives the events of a question, and signals each of them."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self._more = asyncio.Event()

    def __call__(self, event: object) -> None:
        self.events.append(event)
        self._more.set()

    async def until(self, count: int) -> None:
        """Waits until so many were heard."""
        while len(self.events) < count:
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), 60)

    @property
    def answer_id(self) -> str:
        """Returns the answer's id, once it is known where its question reads."""
        (reading,) = [one for one in self.events if isinstance(one, Reading)]
        return reading.answer

    @property
    def ordinals(self) -> list[int]:
        """Returns the ordinals of the events so far."""
        return [one.ordinal for one in self.events if isinstance(one, TrajectoryEvent)]

    @property
    def text(self) -> str:
        """All pieces that were heard."""
        pieces = (one for one in self.events if isinstance(one, palimpsest.TextPiece))
        return "".join(one.text for one in pieces)
