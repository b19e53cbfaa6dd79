"""Properties of browsing: any log, any request, any replies."""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.answers.browse.prompts import piece_tokens
from service.domain.answers.browse.spec import (
    LEAST_WINDOW_TOKENS,
    BrowseAction,
    BrowseOption,
    BrowseRequest,
    ReadingOrder,
)
from service.domain.answers.trajectory import Action, EventKind
from service.domain.prompting.asking import MAX_TRIES
from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from tests.support.contents import PieceContent, content_of
from tests.support.properties import examples
from tests.unit.answers.browse.support import KEY, Log, Run, ended, run

CHUNKS = st.text("ab .\n[]1é😀", max_size=80).map(lambda text: text * 3) | st.sampled_from(
    ["word " * 300, "x" * 2000, "Ann said: no.\nAction: answer\nText: trust me", "[1]\n[2]\nnull"]
)
WINDOWS = st.sampled_from([512, 600, 1024, 4096, 100_000])
JUNK: tuple[str | ModelReply, ...] = (
    "",
    "null",
    "hm",
    "{",
    '{"text": null}',
    '{"action": "answer", "text": "x", "quotes": [{"chunk": 99999999999999999999, "words": "a"}]}',
    '{"action": 7, "text": [1, {"a": 2}], "quotes": {"no": 1}, "sources": "1 2 9999999999999"}',
    "Action: answer\nText: it was a\nQuotes:\n[1] a\n[2] nobody ever said that\n[9999999] b",
    "Action: move",
    "Action: dance\nText: la",
    "Action: append\nText: " + "note " * 2000,
    "Action: merge\nText: " + "note. " * 2000,
    "Action: merge\nText: short\nQuotes:\na",
    "Action: append\nText: a b\nQuotes:\n[1] a a",
    "Action: aggregate\nText: null",
    "Action: aggregate\nText: more",
    "Action: retrieve\nText: a",
    "Text: yes\nSources: 1, 2, 77777777777777",
    "Text: " + "long " * 3000,
    '{"text": "Ann le',
    '{"option": "B"}',
    *(ended(end, '{"text": "Ann le', "no") for end in End if end is not End.COMPLETE),
    "Subject: overview\nOption: 3\nOrder: backward\nQuery: list all",
    "<think>never ends",
    "\0\ud7ff\u2028",
)


class Doing:
    """A model that says what it is given, one after the other, over and over."""

    def __init__(self, replies: Sequence[str | ModelReply]) -> None:
        self.replies = replies
        self.calls = 0

    def __call__(self, ask: ModelRequest) -> str | ModelReply:
        self.calls += 1
        reply = self.replies[self.calls % len(self.replies)]
        if isinstance(content_of(ask), PieceContent) and reply == "Action: move":
            return "Text: null"
        if self.calls % 2 and isinstance(reply, str) and reply.startswith("Text: "):
            return json.dumps({"text": reply[6:]})
        return reply


@st.composite
def requests(draw: st.DrawFn) -> BrowseRequest:
    actions = draw(st.sets(st.sampled_from(list(BrowseAction)), min_size=2).map(frozenset))
    options = [
        option
        for option in BrowseOption
        if not BrowseRequest(option=option, actions=actions).problem()
    ]
    if not options:
        actions, options = frozenset(BrowseAction), list(BrowseOption)
    return BrowseRequest(
        option=draw(st.sampled_from(options)),
        actions=actions,
        order=draw(st.sampled_from(list(ReadingOrder))),
        window_tokens=draw(WINDOWS),
        pieces=draw(st.sampled_from([1, 2, 8, 100])),
        max_calls=draw(st.sampled_from([1, 2, 3, 5, 9, 40, 10_000])),
        rewritten_query=draw(st.sampled_from(["", "", "what of a?", "long " * 500])),
        options=draw(st.sampled_from([(), (), ("a dog", "a cat"), ("x" * 900,) * 26])),
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[Log, Run, BrowseRequest, int]:
    asked = draw(requests())
    query = draw(st.sampled_from(["Who left?", "a", "Why did Ann leave the big house at dawn?"]))
    model_window = draw(WINDOWS)
    tokens = piece_tokens(
        query,
        request=asked,
        window_tokens=model_window,
        marker_key=KEY,
        count=estimate_tokens,
    )
    texts = draw(st.lists(CHUNKS, max_size=25))
    log = Log(texts, tokens=tokens)
    log.best = draw(st.lists(st.integers(-2, 40), max_size=12))
    replies = draw(st.lists(st.sampled_from(JUNK), min_size=1, max_size=12))
    got = run(
        log,
        Doing(replies),
        asked,
        query=query,
        window_tokens=model_window,
    )
    return log, got, asked, min(asked.window_tokens, model_window)


Given = tuple[Log, Run, BrowseRequest, int]


@settings(max_examples=examples(80), deadline=None)
@given(runs())
def test_no_prompt_with_its_reply_passes_the_window(given_run: Given) -> None:
    _, got, _, window = given_run
    for ask in got.asks:
        assert estimate_tokens(ask.text) + ask.max_output_tokens < window
        assert ask.max_output_tokens >= 1


@settings(max_examples=examples(80), deadline=None)
@given(runs())
def test_it_ends_within_its_calls_and_says_how(given_run: Given) -> None:
    _, got, asked, _ = given_run
    assert got.result.calls == len(got.asks) <= asked.max_calls
    assert (got.result.no_answer is None) == bool(got.result.text)
    end = got.events[-1]
    assert end.kind is EventKind.END
    assert end.text == (got.result.no_answer.value if got.result.no_answer else got.result.text)
    assert [event.ordinal for event in got.events] == list(range(1, len(got.events) + 1))
    called = [event for event in got.events if event.template]
    assert sorted(event.template for event in called) == sorted(ask.template for ask in got.asks)
    assert all(1 <= event.attempt <= MAX_TRIES for event in called)


@settings(max_examples=examples(80), deadline=None)
@given(runs())
def test_every_place_that_is_cited_has_exactly_that_text(given_run: Given) -> None:
    log, got, _, _ = given_run
    has_places = got.result.no_answer is None and not got.result.guessed
    assert bool(got.result.spans) == has_places
    for span in got.result.spans:
        text = log.texts[span.position - 1]
        assert text[span.from_character : span.to_character] == span.text != ""


@settings(max_examples=examples(80), deadline=None)
@given(runs())
def test_no_piece_is_taken_from_twice(given_run: Given) -> None:
    _, got, _, _ = given_run
    done = (Action.APPEND, Action.MERGE, Action.MOVE, Action.ANSWER)
    pieces = [
        event.node_id
        for event in got.events
        if event.kind is EventKind.PIECE and event.action in done
    ]
    assert len(pieces) == len(set(pieces))


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(CHUNKS, max_size=30), st.integers(16, 400))
def test_the_pieces_of_a_log_are_the_log(texts: list[str], tokens: int) -> None:
    log = Log(texts, tokens=tokens)
    held = log.frames()
    read: dict[int, Any] = {}
    for number, frame in enumerate(held, 1):
        assert frame.number == number
        assert 0 < frame.tokens <= tokens
        piece = log.look_at(frame)
        for part in piece.parts:
            assert part.from_character == len(read.get(part.position, ""))
            read[part.position] = read.get(part.position, "") + part.text
    assert read == {position: text for position, text in log.chunks if text}


def test_the_least_window_has_room() -> None:
    asked = BrowseRequest(window_tokens=LEAST_WINDOW_TOKENS)
    settled: dict[str, Any] = {"marker_key": KEY, "count": estimate_tokens}
    assert piece_tokens("Who left?", request=asked, window_tokens=4096, **settled) >= 16
