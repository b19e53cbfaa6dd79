"""Steps, vectors and a driver, for the tests of state memories."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.prompting.flows import Flow, ModelReply, ModelRequest
from service.domain.state.compressing import Compression
from service.domain.state.triggers import SizedStep
from service.domain.state.vectors import StateVector, VectorSource
from tests.unit.support.logged import logged_chunk

KEY = b"a key that nobody outside knows"
START = datetime(2026, 1, 1, tzinfo=UTC)


def step(position: int, text: str = "text", *, seconds: float = 0) -> SizedStep:
    """Returns a chunk of the log as a step, written so many seconds after START."""
    return SizedStep.of(
        logged_chunk(
            position, Chunk(kind=ChunkKind.TEXT, text=text), START + timedelta(seconds=seconds)
        )
    )


def steps(texts: Iterable[str], first: int = 1) -> list[SizedStep]:
    """Consecutive steps."""
    return [step(position, text) for position, text in enumerate(texts, first)]


def vector(
    revision: int, text: str, *, level: int = 1, begin: int = 0, end: int = 1
) -> StateVector:
    """Returns a vector of the positions after `begin` up to `end`."""
    return StateVector(
        revision=revision,
        level=level,
        text=text,
        tokens=1,
        made=VectorSource.MODEL,
        after_position=begin,
        from_position=begin,
        to_position=end,
    )


def run(
    flow: Flow[Compression], *replies: str | ModelReply
) -> tuple[Compression, list[ModelRequest]]:
    """Returns what a flow makes of exactly these replies, and what it asked."""
    left = list(replies)
    made, asks = answered(flow, lambda _: left.pop(0))
    assert not left, "it asked less often"
    return made, asks


def answered(
    flow: Flow[Compression], answer: Callable[[ModelRequest], str | ModelReply]
) -> tuple[Compression, list[ModelRequest]]:
    """Returns what a flow makes of a model's replies, and what it asked."""
    asks: list[ModelRequest] = []
    try:
        batch = next(flow)
        while True:
            asks += batch
            said = [answer(ask) for ask in batch]
            batch = flow.send(
                [ModelReply(text=one, model="m") if isinstance(one, str) else one for one in said]
            )
    except StopIteration as stop:
        made: Compression = stop.value
        return made, asks
