"""The prompts of browsing: instructions, then the piece, last what is the question's own.

A piece's text never changes, and every question over a log reads the same pieces: their
size does not depend on the option, and on the query by steps only. So the next question's
prompts begin with all but the last few lines of this one's (docs/decisions/0017).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from string import ascii_uppercase
from typing import Any, Unpack

from service.domain.answers.browse import replies, wording
from service.domain.answers.browse.pieces import ChunkPart, shown, trust_note
from service.domain.answers.browse.spec import BrowseAction, BrowseOption, BrowseRequest, settled
from service.domain.prompting.asking import asked_again
from service.domain.prompting.cutting import shortened
from service.domain.prompting.fitting import (
    MARGIN_TOKENS,
    Count,
    PromptTerms,
    TextTooLong,
    cut_to,
)
from service.domain.prompting.flows import ModelReply, ModelRequest, Purpose, Segment, SegmentKind
from service.domain.prompting.marking import marked
from service.domain.prompting.tokens import marks_in

#: Tokens of a reply at most, and which share of the window.
OUTPUT_TOKENS = 1024
OUTPUT_SHARE = 8
#: Which share of the window is kept free, up to MARGIN_TOKENS.
MARGIN_SHARE = 32
#: Which share of what is free the notes before may have beside a piece.
NOTES_SHARE = 4
#: The query in other words may have one part in so many of the window, and so many tokens.
LOOK_FOR_SHARE = 32
MAX_LOOK_FOR_TOKENS = 128
#: The room for the query grows by this share of the window, so that most questions have
#: pieces of the same size.
QUERY_STEP_SHARE = 32
#: Fewer tokens of text are not worth a prompt.
LEAST_PIECE_TOKENS = 16
#: Retrieved pieces are not made smaller than this, where the window has room for it.
LEAST_RANKED_TOKENS = 128
#: For the size and the form at the end of a prompt, and for what was wrong with a reply.
END_TOKENS = 53
#: For what the counts of texts and of the lines that they make are off by.
SLACK_TOKENS = 4
#: What a mark has at most with most vocabularies.
MOST_MARK_TOKENS = 21
#: For the line above a note.
NOTE_HEAD_TOKENS = 12

#: What ends reading, the short way first.
CLOSING = (BrowseAction.ANSWER, BrowseAction.AGGREGATION)
_OFFERED = tuple(one for one in BrowseAction if one is not BrowseAction.TASK_UNDERSTANDING)


@dataclass(frozen=True, kw_only=True)
class BrowsePrompts:
    """Makes the prompts of one question, each within the window. All raise TextTooLong."""

    query: str
    #: The query in words that fit reading piece by piece; empty: there are none.
    look_for: str = ""
    #: Prompt and reply together, at most.
    window_tokens: int
    marker_key: bytes
    count: Count

    @property
    def output_tokens(self) -> int:
        """Tokens of a reply at most."""
        return min(OUTPUT_TOKENS, self.window_tokens // OUTPUT_SHARE)

    @property
    def room(self) -> int:
        """Tokens of a prompt at most."""
        return self.window_tokens - self.output_tokens - self._margin

    @property
    def _margin(self) -> int:
        return min(MARGIN_TOKENS, self.window_tokens // MARGIN_SHARE)

    @property
    def look_for_tokens(self) -> int:
        """Tokens of `look_for` at most."""
        return min(MAX_LOOK_FOR_TOKENS, self.window_tokens // LOOK_FOR_SHARE)

    @cached_property
    def free(self) -> int:
        """Tokens that a piece's prompt has for it and for notes. Raises TextTooLong."""
        free = self.room - self._tokens_of(self._piece_task_tokens, blocks=3)
        if free < 2 * LEAST_PIECE_TOKENS:
            raise TextTooLong(
                f"the query has {self.count(self.query)} tokens, and a window of"
                f" {self.window_tokens} tokens leaves no room for text beside it:"
                f" {2 * LEAST_PIECE_TOKENS - free} tokens are missing"
            )
        return free

    @cached_property
    def closing_free(self) -> int:
        """Tokens that the prompts after reading have: for notes, or for the best pieces."""
        return self.room - self._tokens_of(self._closing_task_tokens, blocks=2)

    def guess_free(self, options: Sequence[str]) -> int:
        """Tokens that a guess has for notes or pieces; below 0: none, nor for the options."""
        # A letter and a line end each.
        listed = sum(self.count(option) + 4 for option in options)
        return self.closing_free - self._block_tokens - listed

    def _tokens_of(self, task_tokens: int, *, blocks: int) -> int:
        """Returns the tokens of a prompt without its texts, for queries of about this length."""
        step = max(self.window_tokens // QUERY_STEP_SHARE, 1)
        query = -(-self.count(self.query) // step) * step
        own = query + self.look_for_tokens + END_TOKENS
        return task_tokens + blocks * self._block_tokens + own

    def check_room(self) -> None:
        """Raises TextTooLong when the query leaves no room for text."""
        _ = self.free

    @property
    def notes_tokens(self) -> int:
        """Tokens of the notes that are carried along, at most."""
        return min(self.free // NOTES_SHARE, self.output_tokens * 2 // 3)

    @property
    def piece_tokens(self) -> int:
        """Tokens of a piece at most."""
        return self.free - self.notes_tokens - SLACK_TOKENS

    @property
    def note_tokens(self) -> int:
        """Tokens of one note at most: two fit into any prompt, so that they can be made one."""
        return min(self.output_tokens * 2 // 3, self.closing_free // 2 - NOTE_HEAD_TOKENS)

    def held_to(self, text: str, tokens: int) -> str:
        """Returns a text within a limit, cut at the end of a sentence where it can be."""
        short = shortened(text, tokens, self.count)
        return cut_to(short, tokens, self.count) or short[:tokens]

    def note_cost(self, note: str) -> int:
        """Returns the tokens that a note takes of `closing_free`."""
        return self.count(note) + NOTE_HEAD_TOKENS

    @cached_property
    def _piece_task_tokens(self) -> int:
        """Returns the tokens of the longest instructions: they decide the size of pieces."""
        return self.count(wording.piece_task(_OFFERED))

    @cached_property
    def _closing_task_tokens(self) -> int:
        tasks = [
            wording.CONDENSE_TASK,
            *(wording.close_task(CLOSING, from_notes=notes) for notes in (False, True)),
        ]
        return max(map(self.count, tasks))

    @cached_property
    def _block_tokens(self) -> int:
        """Returns the most tokens that a title and the marks of a text have in some samples."""
        samples = (f"[QUESTION]\n{marked(str(number), self.marker_key)}" for number in range(16))
        return max(map(self._tokens, samples))

    @cached_property
    def _unseen_mark_tokens(self) -> int:
        """Returns the tokens of a mark that `count` misses: an estimate by bytes is too low."""
        mark = marked("", self.marker_key).partition("\n")[0]
        return max(MOST_MARK_TOKENS - self.count(mark + "\n"), 0)

    def _tokens(self, text: str) -> int:
        return self.count(text) + self._unseen_mark_tokens * marks_in(text)

    def understand(self, options: Sequence[BrowseOption]) -> ModelRequest:
        """Asks what the query is about, and how to read for it."""
        return self._ask(
            wording.UNDERSTAND,
            wording.understand_task(options),
            [],
            self._last(),
            schema=wording.understand_schema(options),
        )

    def piece(
        self, parts: Sequence[ChunkPart], notes: Sequence[str], offers: Sequence[BrowseAction]
    ) -> ModelRequest:
        """Asks what to do with a piece, and what it says."""
        size = self.notes_tokens if BrowseAction.MERGE in offers else self.note_tokens
        return self._ask(
            wording.PIECE,
            wording.piece_task(offers),
            [
                Segment(kind=SegmentKind.CHUNK, text=self._text(parts), lasting=False),
                *self._notes("\n".join(notes)),
            ],
            self._last(size),
            schema=wording.piece_schema(offers),
            find_text=replies.TextFinder(offers=tuple(offers))
            if BrowseAction.ANSWER in offers
            else None,
        )

    def close(
        self,
        offers: Sequence[BrowseAction],
        *,
        notes: Sequence[str] = (),
        parts: Sequence[ChunkPart] = (),
    ) -> ModelRequest:
        """Asks for the answer, from notes or from the best pieces; `offers` are of CLOSING.

        `notes` are as `noted` shows them.
        """
        return self._ask(
            wording.CLOSE if notes else wording.READ,
            wording.close_task(offers, from_notes=bool(notes)),
            self._held(notes, parts),
            self._last(),
            schema=wording.close_schema(offers, from_notes=bool(notes)),
            # Whatever it chooses, the text is the answer.
            find_text=replies.TextFinder(offers=()),
        )

    def condense(self, notes: Sequence[str]) -> ModelRequest:
        """Asks for one note made of several."""
        return self._ask(
            wording.CONDENSE,
            wording.CONDENSE_TASK,
            self._notes(_numbered(notes)),
            self._last(self.note_tokens),
            schema=wording.CONDENSE_SCHEMA,
        )

    def guess(
        self,
        options: Sequence[str],
        *,
        notes: Sequence[str] = (),
        parts: Sequence[ChunkPart] = (),
    ) -> ModelRequest:
        """Asks for the likeliest of at most 26 options, where nothing that was read says it."""
        letters = ascii_uppercase[: len(options)]
        lines = zip(letters, (" ".join(option.split()) for option in options), strict=True)
        shown_options = "\n".join(f"{letter}. {option}" for letter, option in lines)
        return self._ask(
            wording.GUESS,
            wording.guess_task(from_notes=bool(notes), from_text=bool(parts)),
            self._held(notes, parts),
            self._last(before="[OPTIONS]\n" + marked(shown_options, self.marker_key)),
            schema=wording.guess_schema(letters),
        )

    def again(
        self, first: ModelRequest, last: ModelRequest, reply: ModelReply, fault: str
    ) -> ModelRequest:
        """Returns the ask that follows a reply that was no use: to `last`, and first to `first`.

        Its reply may have more tokens, where that is what was wrong and the window has them.
        """
        spare = self.window_tokens - self._margin - END_TOKENS - self._tokens_of_ask(first)
        tries = last.attempt + 1
        again = asked_again(first, reply, fault, tries=tries, most_tokens=spare)
        return replace(again, attempt=tries)

    def _held(self, notes: Sequence[str], parts: Sequence[ChunkPart]) -> list[Segment]:
        if notes or not parts:
            return self._notes(_numbered(notes))
        return [Segment(kind=SegmentKind.CHUNK, text=self._text(parts), reusable=False)]

    def _text(self, parts: Sequence[ChunkPart]) -> str:
        return f"[TEXT]\n{trust_note(parts)}{marked(shown(parts), self.marker_key)}"

    def _notes(self, text: str) -> list[Segment]:
        if not text:
            return []
        shown_notes = "[NOTES]\n" + marked(text, self.marker_key)
        return [Segment(kind=SegmentKind.CHUNK, text=shown_notes, reusable=False)]

    def _last(self, size: int = 0, before: str = "") -> Segment:
        look_for = f"\nLook for: {self.look_for}" if self.look_for else ""
        lines = before + "[QUESTION]\n" + marked(self.query + look_for, self.marker_key)
        # The form once more: weak models forget it.
        bound = f"; text has at most {size} tokens" if size else ""
        lines += f"Reply with one JSON object{bound}.\n"
        return Segment(kind=SegmentKind.QUERY, text=lines, reusable=False)

    def _tokens_of_ask(self, ask: ModelRequest) -> int:
        # Tokens of a whole are not the sum of its parts': half of the margin is for that.
        return sum(self._tokens(segment.text) for segment in ask.segments)

    def _ask(
        self,
        template: str,
        task: str,
        texts: Sequence[Segment],
        last: Segment,
        *,
        schema: dict[str, Any],
        find_text: replies.TextFinder | None = None,
    ) -> ModelRequest:
        ask = ModelRequest(
            purpose=Purpose.BROWSE,
            template=template,
            segments=(Segment(kind=SegmentKind.TASK, text=task), *texts, last),
            max_output_tokens=self.output_tokens,
            reply_schema=schema,
            find_text=find_text,
        )
        excess = self._tokens_of_ask(ask) - self.room - self._margin // 2
        if excess > 0:
            raise TextTooLong(
                f"a prompt of {template} passes the window of {self.window_tokens} tokens by"
                f" {excess}: the query is too long, or a piece was made for a larger window"
            )
        return ask


def _numbered(notes: Sequence[str]) -> str:
    return "\n".join(f"Note {number} {note}" for number, note in enumerate(notes, 1))


def noted(text: str, from_position: int, to_position: int) -> str:
    """Returns a note as prompts show it, with the chunks that it may be from."""
    return f"[{from_position}-{to_position}]:\n{text}"


def prompts_within(
    query: str, request: BrowseRequest, **terms: Unpack[PromptTerms]
) -> BrowsePrompts:
    """Returns the prompts within the request's window, or the model's where that is smaller."""
    window = min(request.window_tokens, terms["window_tokens"])
    return replace(BrowsePrompts(query=query, **terms), window_tokens=window)


def piece_tokens(query: str, *, request: BrowseRequest, **terms: Unpack[PromptTerms]) -> int:
    """Tokens that a piece may have, the numbers of its chunks included.

    Where only retrieval is to read, pieces are so small that all that it names fit into one
    prompt. Raises TextTooLong when the query leaves no room.
    """
    prompts = prompts_within(query, request, **terms)
    whole = prompts.piece_tokens
    if settled(request) is not BrowseOption.RANK:
        return whole
    return min(whole, max(prompts.closing_free // request.pieces, LEAST_RANKED_TOKENS))


def usable(look_for: str, prompts: BrowsePrompts) -> str:
    """Returns a query in other words if it says anything new and is not too long; else empty."""
    look_for = " ".join(look_for.split())
    is_new = look_for != " ".join(prompts.query.split())
    return look_for if is_new and prompts.count(look_for) <= prompts.look_for_tokens else ""
