"""Errors of questions and filters name the field; time counts from the first call."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

import palimpsest
from palimpsest import BrowseSettings, Question
from palimpsest._async import _listening
from palimpsest._convert_answers import question_of, request_of
from palimpsest._convert_chunks import chunk_filter


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"browsing": BrowseSettings(window_tokens=-(2**40))},
            "window_tokens cannot be -1099511627776",
        ),
        ({"browsing": BrowseSettings(pieces=2**40)}, "pieces cannot be 1099511627776"),
        ({"hybrid_leaves": 2**40}, "hybrid_leaves cannot be 1099511627776"),
        ({"model": "a/\ud800"}, "surrogates not allowed in model"),
    ],
)
def test_a_number_or_text_that_cannot_be_sent_is_named(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        request_of("s", Question(query="Who?", **asked))


def test_a_question_is_a_text_or_a_question() -> None:
    with pytest.raises(TypeError, match=r"a question is a text or a palimpsest\.Question, not 5"):
        question_of(5, {})  # type: ignore[arg-type]


def test_a_filter_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match=r"no filter 'thread'; there are since, until, .*threads"):
        chunk_filter(thread=["a"])  # type: ignore[call-arg]


async def test_a_question_to_a_memory_names_no_other_memory() -> None:
    async with palimpsest.connect("127.0.0.1:1") as client:
        memory = client.session("s").tree("t")
        with pytest.raises(TypeError, match="multiple values for keyword argument 'memory'"):
            await memory.ask("Who?", memory="other")  # type: ignore[call-arg]


async def test_the_time_of_a_stream_counts_from_its_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, timeouts = [100.0], []

    class Lost:
        answers = SimpleNamespace(Ask=None)

        async def responses(self, *_: Any, timeout: float) -> AsyncIterator[Any]:
            timeouts.append(timeout)
            none: tuple[Any, ...] = ()
            for one in none:
                yield one

    monkeypatch.setattr(_listening, "time", SimpleNamespace(monotonic=lambda: now[0]))
    listening = _listening.Listening(Lost(), "s", 5.0)  # type: ignore[arg-type]
    events = listening.ask(request_of("s", Question(query="Who?")))
    now[0] += 60
    with pytest.raises(palimpsest.PalimpsestError, match="without an answer"):
        await anext(events)
    assert timeouts == [5.0]
