"""How long a step waits for more chunks than it has."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from service.domain.log.chunks import Chunk, ChunkKind, LoggedChunk
from service.domain.prism.lingering import Linger, ServiceLinger, linger_of
from service.domain.prism.pacing import SizedChunk
from service.domain.prism.spec import SERVICE_LINGER_MS, PrismSpec

BEGIN = datetime(2026, 11, 27, 12, tzinfo=UTC)
SPEC = PrismSpec(schema_source="class N:\n    a: str\n", linger_ms=SERVICE_LINGER_MS)
SERVICE = ServiceLinger(message_seconds=10, small_talk_tokens=6, small_talk_seconds=300)


def words(text: str) -> int:
    return len(text.split())


def said(text: str, second: float, kind: ChunkKind = ChunkKind.MESSAGE) -> SizedChunk:
    """Returns a chunk of so many words, with a heading that has more."""
    thread = "a thread with very many words"
    chunk = Chunk(kind=kind, role="user", text=text, thread=thread, occurred_at=BEGIN)
    at = BEGIN + timedelta(seconds=second)
    logged = LoggedChunk(
        position=1, producer_id="p", producer_sequence=1, chunk=chunk, created_at=at
    )
    return SizedChunk.of(logged, words)


def wait(*group: SizedChunk, spec: PrismSpec = SPEC, service: ServiceLinger = SERVICE) -> object:
    """Returns when the wait ends, in seconds, and whether a chunk ends it; None: there is none."""
    found = linger_of(spec, group, service, words)
    if found is None:
        return None
    assert isinstance(found, Linger)
    return (found.due - BEGIN).total_seconds(), found.until_more


FACT = "my sister moved to Bern in May of last year"


def test_small_talk_waits_for_what_is_said_besides() -> None:
    assert wait(said("hi", 0)) == (300, True)
    assert wait(said("hi", 0), said("hello how are you", 4)) == (300, True)


def test_a_fact_waits_as_ever_wherever_it_comes() -> None:
    assert wait(said(FACT, 0)) == (10, False)
    assert wait(said(FACT, 0), said("thanks", 2)) == (10, False)
    # What is said after a greeting has its time for a reply as well.
    assert wait(said("hi", 0), said(FACT, 60)) == (70, False)


def test_small_talk_that_adds_up_is_none() -> None:
    assert wait(*(said("one two", second) for second in (0, 20, 40))) == (300, True)
    assert wait(*(said("one two", second) for second in (0, 20, 40, 60))) == (70, False)


def test_nothing_waits_longer_than_small_talk_may() -> None:
    assert wait(said("hi", 0), said(FACT, 295)) == (300, False)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"message_seconds": 0}, None),
        ({"small_talk_tokens": 0}, (10, False)),
        ({"small_talk_seconds": 0}, (10, True)),
    ],
)
def test_the_operator_turns_it_off(changes: dict[str, float], expected: object) -> None:
    assert wait(said("hi", 0), service=replace(SERVICE, **changes)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(("linger_ms", "expected"), [(0, None), (8000, (8, False))])
def test_a_memory_that_says_how_long_is_not_asked_what_is_said(
    linger_ms: int, expected: object
) -> None:
    assert wait(said("hi", 0), spec=replace(SPEC, linger_ms=linger_ms)) == expected


def test_what_is_no_message_does_not_wait() -> None:
    assert wait(said("hi", 0), said("a page", 1, ChunkKind.TEXT)) is None
