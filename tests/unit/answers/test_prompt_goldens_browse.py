"""The prompts of browsing and reranking as they are recorded: a change shows in the diff."""

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from service.domain.answers.browse.pieces import ChunkPart
from service.domain.answers.browse.prompts import CLOSING, BrowsePrompts, noted
from service.domain.answers.browse.spec import BrowseAction, BrowseOption
from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.search.reranking import rerank
from tests import ROOT

RECORDED = (ROOT / "tests") / "recorded" / "prompts"
KEY = b"a key that nobody outside knows"
QUERY = "Who left the house,\nand when?"
PARTS = [
    ChunkPart(position=7, from_character=0, text="Ann came in."),
    ChunkPart(position=8, from_character=0, text="Ben left at dawn."),
]
NOTES = [
    noted("Dora left in May.", 1, 3),
    noted("Ben left at dawn.", 7, 8),
]
READ = (BrowseOption.RANK, BrowseOption.CARRY, BrowseOption.INDEPENDENT, BrowseOption.SCAN)
MOVE = BrowseAction.MOVE
OFFERED = (
    MOVE,
    BrowseAction.RETRIEVE,
    BrowseAction.APPEND,
    BrowseAction.MERGE,
    BrowseAction.ANSWER,
    BrowseAction.AGGREGATION,
)
#: Before the question was understood, and after that.
NEW = BrowsePrompts(query=QUERY, window_tokens=4096, marker_key=KEY, count=estimate_tokens)
PROMPTS = replace(NEW, look_for="Who left, and when.")


def piece(*offers: BrowseAction) -> ModelRequest:
    return PROMPTS.piece(PARTS, ["Dora left in May."], offers)


def again() -> ModelRequest:
    first = piece(*OFFERED)
    reply = ModelReply(text="", model="m", end=End.LENGTH)
    return PROMPTS.again(first, first, reply, "it was too long, and was cut off before its end")


def reranked() -> ModelRequest:
    flow = rerank(
        QUERY,
        [part.text for part in PARTS],
        marker_key=KEY,
        window_tokens=4096,
        count=estimate_tokens,
    )
    (ask,) = next(flow)
    return ask


#: By template, what is recorded of it.
ASKS: dict[str, list[Callable[[], ModelRequest]]] = {
    "browse.understand/2": [lambda: NEW.understand(READ), lambda: NEW.understand(READ[:1])],
    "browse.piece/2": [
        lambda: piece(*OFFERED),
        *(
            lambda only=only: piece(MOVE, only)
            for only in (BrowseAction.APPEND, BrowseAction.MERGE, BrowseAction.ANSWER)
        ),
        again,
    ],
    "browse.close/2": [
        lambda: PROMPTS.close(CLOSING, notes=NOTES),
        lambda: PROMPTS.close(CLOSING[:1], notes=NOTES),
        lambda: PROMPTS.close(CLOSING[1:], notes=NOTES),
    ],
    "browse.read/2": [
        lambda: PROMPTS.close(CLOSING, parts=PARTS),
        lambda: PROMPTS.close(CLOSING[:1], parts=PARTS),
    ],
    "browse.condense/2": [lambda: PROMPTS.condense(NOTES)],
    "browse.guess/1": [
        lambda: PROMPTS.guess(["Ann", "Ben"], notes=NOTES),
        lambda: PROMPTS.guess(["Ann", "Ben"], parts=PARTS),
        lambda: PROMPTS.guess(["Ann", "Ben"]),
    ],
    "search.rerank/2": [reranked],
}


def written(asks: list[ModelRequest]) -> str:
    """Prompts as they are recorded, one below the other."""
    return "\n".join(f"===== {number} =====\n{ask.text}" for number, ask in enumerate(asks, 1))


@pytest.mark.parametrize("template", ASKS)
def test_a_prompt_is_as_it_is_recorded(template: str) -> None:
    asks = [make() for make in ASKS[template]]
    assert {ask.template for ask in asks} == {template}
    assert all(ask.reply_schema is not None for ask in asks)
    path = RECORDED / f"{template.partition('/')[0]}.txt"
    if os.environ.get("PALIMPSEST_TEST_UPDATE"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(written(asks))
    assert written(asks) == path.read_text()
