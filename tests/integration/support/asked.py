"""Questions to the log, and a model that reads pieces by a word."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from service.domain.answers.browse.spec import BrowseOption, BrowseRequest
from service.domain.answers.trajectory import Event
from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.values.memory_specs import ReaderName
from service.domain.values.work_items import WorkItem
from storage.engine.database import Database
from tests.integration.support.stored_answers import store_question
from tests.support.contents import (
    CloseContent,
    CondenseContent,
    PieceContent,
    UnderstandContent,
    content_of,
)

#: Small, so that few chunks make several pieces.
WINDOW = 768


@dataclass
class Words:
    """A reader that takes what has a word, and answers with all of it."""

    word: str
    option: BrowseOption = BrowseOption.INDEPENDENT
    seen: list[object] = field(default_factory=list)

    def __call__(self, ask: ModelRequest, number: int) -> str:
        content = content_of(ask)
        self.seen.append(content)
        match content:
            case UnderstandContent():
                how = f"Option: {self.option.value}\nOrder: forward\nQuery: {content.query}"
                return f"Subject: fact\n{how}"
            case PieceContent():
                for position, text in content.parts:
                    if self.word in text:
                        found = next(one for one in text.split(". ") if self.word in one)
                        return f"Action: append\nText: {found}\nQuotes:\n[{position}] {found}"
                return "Text: null"
            case CondenseContent():
                return f"Text: {content.notes[0][:40]}"
            case CloseContent():
                said = content.notes or [t for _, t in content.parts if self.word in t]
                return f"Text: {said[0]}\nSources: 1" if said else "Text: null"
        raise AssertionError(f"not asked for {content}")


async def ask_log(
    database: Database, *, up_to: int, model: str = "", query: str = "What of it?", **wanted: Any
) -> WorkItem:
    """Returns a question to the log, as it is stored."""
    request = BrowseRequest(**{"window_tokens": WINDOW, **wanted})
    return await store_question(
        database,
        None,
        query,
        revision=0,
        applied_position=up_to,
        reader=ReaderName.DCISO,
        browsing=request,
        model=model,
    )


def path(events: list[Event]) -> list[tuple[str, str, str]]:
    """Returns what happened, and where."""
    return [(event.kind.value, event.node_id, event.action.value) for event in events]


def tokens_of(ask: ModelRequest) -> int:
    """Returns the tokens of a prompt and its reply."""
    return estimate_tokens(ask.text) + ask.max_output_tokens


Reply = Callable[[ModelRequest, int], str]
