"""Replies: of navigations, browsing, working contexts, reranking, and answers of all kinds."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from evaluation.baselines import prompts as baselines
from service.domain.answers import whole
from service.domain.answers.answer_updates import following
from service.domain.answers.answer_updates import text_of as told_text
from service.domain.answers.browse import replies as browsing
from service.domain.answers.browse.pieces import ChunkPart
from service.domain.answers.browse.prompts import BrowsePrompts
from service.domain.answers.browse.quoting import best_span, spans_of
from service.domain.answers.browse.spec import BrowseAction, BrowseOption
from service.domain.answers.browse.understanding import CHOSEN, read_understanding
from service.domain.prompting.asking import Unusable
from service.domain.prompting.cutting import shortened, split
from service.domain.prompting.replies import json_text_so_far, storable
from service.domain.prompting.thoughts import spoken
from service.domain.prompting.tokens import estimate_tokens
from service.domain.search.reranking import read_order
from service.domain.state import asking as state
from service.domain.tree import moves
from service.usecases.answers.readers.spans import quoted
from verification.fuzz.mutations import ODD, json_of, text_of
from verification.fuzz.runs import SECONDS, Broken, Target

#: Characters of a reply; the longest has some ten thousand tokens.
MAX_REPLY = 60_000
_LOG = (
    "The harbour museum opened in 1903. “It is a ship,” said Ada.\n\nA_b c_d — ten per cent.",
    "Step two: read   the  file\tand\nwrite it. foo_bar __init__ _ _ _ _ x",
    "日本語の文。二番目の文。 No blanks.",
)
_PARTS = tuple(
    ChunkPart(position=at, from_character=0, text=text) for at, text in enumerate(_LOG, 1)
)
_OPTIONS = ("A ship", "A museum", "No one", "A museum in a ship")
_MOVES = (
    "Reasoning: the second is about it.\nAction: 1",
    "**Reasoning:** nothing fits.\n**Action:** -1",
    '{"reasoning": "x", "action": [0, 2], "answer": null}',
    '```json\n{"action": -2, "answer": "A ship"}\n```',
    "Action: -2\nAnswer: (B) A museum\nSources: 0, 1",
    "<think>maybe</think>\n## Action\nenter summary 2 because it says so",
    "1",
)
_MOVE_NOISE = (
    *(
        "Action: ",
        "Answer:",
        "Reasoning:",
        "Sources: ",
        "-1",
        "-2",
        "0, 1",
        "(A)",
        "the ",
        "summary ",
    ),
    *("**", "\n", "> ", "1. ", '{"action": ', '"answer": ', "to ", "is ", ":", "–", "…", "[2]"),
)
_BROWSED = (
    "Action: append\nText: It opened in 1903.\nQuotes:\n[1] “opened in 1903”\n- chunk 2: read",
    '{"action": "answer", "text": "A ship", "quotes": [{"chunk": 1, "words": "It is"}, "[2] _"],'
    ' "sources": [1, 2]}',
    "**Action:** move\n**Text:** null",
    "Answer: ten per cent\nQuotes\n1: ten per cent.\nSources: 1, 3",
    "Subject: code\nOption: 2\nOrder: backward\nQuery: where is the museum",
    '{"subject": "fact", "option": "rank", "order": "forward", "query": "museum"}',
    "null",
)
_BROWSED_NOISE = (
    *(
        "Action: ",
        "Text: ",
        "Quotes:",
        "Sources: ",
        "Quote 1: ",
        "[1]",
        "null",
        "_ ",
        "_ _ _ _ _ _ ",
    ),
    *(
        "option: ",
        "query: ",
        "\n",
        "“",
        "”",
        "foo_bar",
        '{"text": ',
        '"quotes": [',
        "a ",
        "1 ",
        "-",
    ),
)
_STATE_ANSWERS = (
    "[ANSWER]\nIt was opened.\n[STEPS]\n3, 5-7 and 9",
    "**Answer:** The state does not say.\nSteps: none",
    "[ANSWER] x\n[STEPS]\n- step 2\n1. step 4 to 6\n* 7–900000000000000000",
    "The final answer: yes\nsources: 1 2 3",
)
_STATE_NOISE = (
    *(
        "[ANSWER]",
        "[STEPS]",
        "answer:",
        "steps:",
        "step ",
        "1-9",
        "to ",
        "and ",
        ", ",
        "#",
        "\n",
        "**",
    ),
    *("no answer", "the state does not say", "-", "none", "(", "1-99999,"),
)
_WHOLE = (
    "[ANSWER]\nA ship.\n[QUOTES]\n1: “It is a ship”\n[2] read the file",
    "Answer: no answer",
    "the log does not say so.\nQuotes: \n#1 - _ _ _ _ _ _ _ x",
)
_WHOLE_NOISE = (
    "[ANSWER]",
    "[QUOTES]",
    "1: ",
    "“",
    "”",
    "_ ",
    "_ _ _ _ _ _ _ ",
    "quote: ",
    "\n",
    "  ",
)
_ORDERS = ("[2] [1] [3]", "3. first\n1. second", '{"order": [3, 1, 2]}', "1, 2 and 3 of 2024.5")
_PROMPTS = BrowsePrompts(query="where?", window_tokens=4096, marker_key=b"k", count=estimate_tokens)


def _storable(*texts: str) -> None:
    for text in texts:
        text.encode()
        if "\0" in text:
            raise Broken("what is read of a reply can be stored")


def _tree(text: str) -> bool:
    made = moves.read_triage(text, shown=3, closed={1}, may_revert=True, beam=2)
    if isinstance(made, moves.Enter) and not set(made.targets) <= {0, 2}:
        raise Broken("a move leads to an open child")
    leaf = moves.read_leaf(text, options=_OPTIONS)
    merge = moves.read_merge(text, answers=3, options=(), rivals=())
    if isinstance(leaf, moves.NavigationAnswer) and leaf.text not in _OPTIONS:
        raise Broken("an answer is one of the options")
    if isinstance(merge, moves.NavigationAnswer) and not set(merge.sources) <= {0, 1, 2}:
        raise Broken("sources are answers")
    for one in (made, leaf, merge):
        if isinstance(one, moves.Unreadable) and not one.text:
            raise Broken("what is unreadable says why")
    return not all(isinstance(one, moves.Unreadable) for one in (made, leaf, merge))


def _browse(text: str) -> bool:
    said = browsing.read_piece(text, tuple(BrowseAction))
    spans = spans_of(said.quotes, _PARTS)
    for span in (*spans, best_span(said.text or "x", _PARTS)):
        if span.text != _LOG[span.position - 1][span.from_character : span.to_character]:
            raise Broken("a span is of the log, word for word")
    _storable(*(one.words for one in said.quotes))
    _storable(said.text, said.reasoning)
    return True


def _understand(text: str) -> bool:
    made = read_understanding(text, CHOSEN, _PROMPTS)
    if made.option is BrowseOption.AUTO or not made.query:
        raise Broken("an understanding is one")
    _storable(made.query)
    return True


def _growing(text: str, tell: Callable[[str], str]) -> str:
    """Checks the streamed text of a growing reply: it only grows."""
    before = ""
    for end in sorted({len(text) * part // 8 for part in range(1, 9)}):
        so_far = tell(text[:end])
        if not so_far.startswith(before.rstrip()) and so_far:
            raise Broken("what is told of a reply only grows")
        before = so_far or before
    pieces = following(0, "", before)
    if told_text(pieces) != before:
        raise Broken("pieces tell the text")
    return before


def _state(text: str) -> bool:
    said = state.read_answer(text, range(1, 2000))
    state.answer_so_far(text)
    if said is not None and not set(said.sources) <= set(range(1, 2000)):
        raise Broken("positions are known ones")
    return said is not None and bool(said.text)


def _whole(text: str) -> bool:
    said = whole.read_answer(text)
    whole.answer_so_far(text)
    for quote in () if said is None else said.sources:
        for log in _LOG:
            span = quoted(log, quote.text)
            if span is not None and not 0 <= span[0] < span[1] <= len(log):
                raise Broken("a quote has its place")
    return said is not None and bool(said.sources)


def _told(text: str) -> bool:
    return bool(_growing(text, lambda so_far: json_text_so_far(so_far, "text")))


def _browsed_so_far(text: str) -> bool:
    return bool(
        _growing(text, browsing.TextFinder(offers=(BrowseAction.ANSWER, BrowseAction.MOVE)))
    )


def _order(text: str) -> bool:
    order = read_order(text, 3)
    if order and sorted(order) != [0, 1, 2]:
        raise Broken("an order has every passage once")
    return bool(order)


def _baseline(text: str) -> bool:
    if baselines.read_answer(text, _OPTIONS) not in ("", *_OPTIONS):
        raise Broken("an answer is one of the options")
    return bool(baselines.read_answer(text, ()))


def _pieces(text: str) -> bool:
    if "".join(split(text, 50, estimate_tokens_of)) != text:
        raise Broken("pieces are the text")
    if estimate_tokens_of(shortened(spoken(text), 60, estimate_tokens_of)) > 64:
        raise Broken("what is shortened fits")
    return True


def estimate_tokens_of(text: str) -> int:
    """Counts as the service does, of texts with halves of surrogate pairs as well."""
    return (len(text) + 3) // 4


def _of(corpus: Sequence[str], noise: Sequence[str], objects: Sequence[Any] = ()) -> Any:
    words = (
        "action",
        "answer",
        "text",
        "quotes",
        "sources",
        "reasoning",
        "words",
        "chunk",
        "query",
    )

    def make(rng: random.Random) -> str:
        if objects and rng.random() < 0.3:
            text = json_of(rng, objects, words, noise)
        else:
            text = text_of(rng, corpus, (*noise, *ODD) if rng.random() < 0.2 else noise)
        # As the transport gives it on.
        return storable(text[:MAX_REPLY])

    return make


_MOVE_OBJECTS = ({"reasoning": "x", "action": 2, "answer": "A ship", "sources": [0, 1]},)
_BROWSED_OBJECTS = (
    {
        "action": "answer",
        "text": "x",
        "quotes": [{"chunk": 1, "words": "It is a ship"}],
        "sources": [1],
    },
    {"subject": "fact", "option": "rank", "order": "backward", "query": "x"},
)

TARGETS: Sequence[Target] = (
    Target(name="tree-replies", make=_of(_MOVES, _MOVE_NOISE, _MOVE_OBJECTS), check=_tree),
    Target(
        name="dciso-replies",
        make=_of(_BROWSED, _BROWSED_NOISE, _BROWSED_OBJECTS),
        check=_browse,
        refusals=(Unusable,),
    ),
    Target(
        name="dciso-understanding",
        make=_of(_BROWSED, _BROWSED_NOISE, _BROWSED_OBJECTS),
        check=_understand,
        refusals=(Unusable,),
    ),
    # These read each reply eight times, as far as it is there.
    Target(
        name="dciso-streaming",
        make=_of(_BROWSED, _BROWSED_NOISE),
        check=_browsed_so_far,
        calls=1_000_000,
        seconds=8 * SECONDS,
    ),
    Target(
        name="json-streaming",
        make=_of(_BROWSED, _BROWSED_NOISE, _BROWSED_OBJECTS),
        check=_told,
        calls=1_000_000,
        seconds=8 * SECONDS,
    ),
    Target(name="state-replies", make=_of(_STATE_ANSWERS, _STATE_NOISE), check=_state),
    Target(name="whole-replies", make=_of(_WHOLE, _WHOLE_NOISE), check=_whole),
    Target(name="rerank-replies", make=_of(_ORDERS, ("[", "]", "1", "2. ", ", ")), check=_order),
    Target(name="baseline-replies", make=_of(_MOVES, _MOVE_NOISE), check=_baseline),
    Target(
        name="splitting", make=_of((*_LOG, *_WHOLE), ("\n", ". ", "。", '."', " ")), check=_pieces
    ),
)
