"""Closing: the answer from what was extracted (algorithm 1, line 12).

ANSWER is short, AGGREGATION long. Where a question has options and nothing that was read
answers it, the likeliest is guessed. Notes that do not fit into one prompt are made fewer first: in
groups, level by level, each level in one batch.
"""

from collections.abc import Sequence

from service.domain.answers.browse.pieces import Browsed, BrowsePiece, Span
from service.domain.answers.browse.prompts import CLOSING
from service.domain.answers.browse.quoting import (
    MAX_SPANS,
    best_fitting,
    best_of,
    best_span,
    spans_of,
)
from service.domain.answers.browse.reading import ACTIONS, BrowseRun, Note, grouped
from service.domain.answers.browse.replies import (
    BrowseReplyParts,
    action_of,
    read_guess,
    split_reply,
)
from service.domain.answers.browse.spec import BrowseAction, QuerySubject
from service.domain.answers.citations import best_position
from service.domain.answers.trajectory import Action, EventKind, NoAnswer
from service.domain.prompting.asking import Unusable
from service.domain.prompting.flows import FetchingFlow, ModelRequest


def close(reading: BrowseRun) -> FetchingFlow[Browsed]:
    """Answers from all notes; without notes there is no answer."""
    if not reading.notes:
        why = _why(reading)
        return (yield from fail(reading, why, reading.cause if why is NoAnswer.UNREADABLE else ""))
    free = reading.prompts.closing_free
    while sum(note.cost for note in reading.notes) > free:
        yield from _condense(reading)
        if not reading.notes:
            return (yield from fail(reading, NoAnswer.NOT_FOUND))
    return (yield from _answer(reading, notes=reading.notes))


def close_from(reading: BrowseRun, pieces: Sequence[BrowsePiece]) -> FetchingFlow[Browsed]:
    """Answers from the pieces themselves, which fit into one prompt."""
    for piece in pieces:
        # No move was chosen at any of them, but their positions belong into the trajectory.
        yield from reading.tell(
            EventKind.PIECE, Action.NONE, frame=reading.frame(piece.frame.number)
        )
    return (yield from _answer(reading, pieces=pieces))


def fail(reading: BrowseRun, why: NoAnswer, cause: str = "") -> FetchingFlow[Browsed]:
    """Ends without an answer, or guesses if the question has options and a text was read."""
    options = reading.request.options
    if options and why in (NoAnswer.NOT_FOUND, NoAnswer.STEP_LIMIT):
        return (yield from guess(reading, options, why))
    yield from reading.tell(EventKind.END, Action.NONE, text=why.value, reasoning=cause)
    return Browsed(
        text="",
        no_answer=why,
        spans=(),
        calls=reading.calls,
        passed=reading.passed,
        cause=cause,
    )


def succeed(reading: BrowseRun, text: str, spans: Sequence[Span]) -> FetchingFlow[Browsed]:
    """Ends with an answer and the places in the log that it rests on."""
    yield from reading.tell(EventKind.END, Action.ANSWER, text=text)
    found = best_fitting(text, tuple(dict.fromkeys(spans)), MAX_SPANS)
    return Browsed(
        text=text, no_answer=None, spans=found, calls=reading.calls, passed=reading.passed
    )


def _why(reading: BrowseRun) -> NoAnswer:
    if reading.stopped:
        return NoAnswer.STEP_LIMIT
    if reading.passed and not reading.readable:
        return NoAnswer.UNREADABLE
    return NoAnswer.NOT_FOUND


def closing_actions(reading: BrowseRun) -> tuple[BrowseAction, ...]:
    """Returns the closing actions to offer: the one chosen at a piece, or the query's.

    Without task understanding the model chooses, as in section 4.4.
    """
    allowed = tuple(one for one in CLOSING if one in reading.request.actions)
    wanted = reading.ending
    if wanted is None and reading.subject is not None:
        is_long = reading.subject is QuerySubject.OVERVIEW
        wanted = BrowseAction.AGGREGATION if is_long else BrowseAction.ANSWER
    return (wanted,) if wanted in allowed else allowed


def _answer(
    reading: BrowseRun, *, notes: Sequence[Note] = (), pieces: Sequence[BrowsePiece] = ()
) -> FetchingFlow[Browsed]:
    offers = closing_actions(reading)
    parts = [part for piece in pieces for part in piece.parts]
    shown = sorted({n for note in notes for n in note.pieces}) or [p.frame.number for p in pieces]
    ask = reading.prompts.close(offers, notes=reading.shown(notes), parts=parts)
    if reading.calls_left < 1:
        return (yield from fail(reading, NoAnswer.STEP_LIMIT))

    def read(_: int, reply: str) -> tuple[Action, str, BrowseReplyParts]:
        said = _read_answer(reply)
        action = action_of(said.action)
        done = ACTIONS[action if action in offers else offers[0]] if said.text else Action.NONE
        return done, said.text, said

    found, faults = yield from reading.aggregate({0: ask}, read, shown={0: shown})
    if not found:
        why = NoAnswer.UNREADABLE if faults else NoAnswer.STEP_LIMIT
        return (yield from fail(reading, why, faults.get(0, "")))
    said = found[0]
    if not said.text:
        return (yield from fail(reading, NoAnswer.NOT_FOUND))
    if notes:
        spans = _sourced(reading, said, notes)
    else:
        spans = spans_of(said.quotes, parts) or (
            best_span(said.text, parts, around=reading.prompts.query),
        )
    return (yield from succeed(reading, said.text, spans))


def _read_answer(reply: str) -> BrowseReplyParts:
    """Returns the answer of a reply; empty if it says that there is none. Raises Unusable."""
    said = split_reply(reply)
    if not said.is_null:
        return said
    if not said.text and not said.is_named:
        raise Unusable("it has no text")
    return BrowseReplyParts()


def _sourced(reading: BrowseRun, said: BrowseReplyParts, notes: Sequence[Note]) -> tuple[Span, ...]:
    """Returns the places of the notes that an answer names, or the place that fits it best."""
    named = [notes[number - 1] for number in said.sources if 1 <= number <= len(notes)]
    if named:
        return tuple(span for note in named for span in note.spans)
    every = [span for note in notes for span in note.spans]
    return (best_of(said.text, every, around=reading.prompts.query),)


def _condense(reading: BrowseRun) -> FetchingFlow[None]:
    """Condenses each group of notes that fits into a prompt to one note."""
    prompts, notes = reading.prompts, reading.notes
    costs = [note.cost for note in notes]
    groups = [[notes[at] for at in group] for group in grouped(costs, prompts.closing_free)]
    shown = {n: _numbers(group) for n, group in enumerate(groups) if len(group) > 1}
    asks = {number: prompts.condense(reading.shown(groups[number])) for number in shown}

    def read(number: int, reply: str) -> tuple[Action, str, Note | None]:
        said = split_reply(reply)
        text = "" if said.is_null else prompts.held_to(said.text, prompts.note_tokens)
        if not text:
            return Action.NONE, "", None
        return Action.AGGREGATE, text, _one(reading, groups[number], text)

    # Never fewer calls are kept than the levels above this one take, however the groups come out.
    found, _ = yield from reading.aggregate(asks, read, shown=shown, kept=reading.closing_calls)
    made: list[Note | None] = []
    for number, group in enumerate(groups):
        if number not in shown:
            made.append(group[0])
        elif number in found:
            made.append(found[number])
        else:
            joined = "\n".join(note.text for note in group)
            short = prompts.held_to(joined, prompts.note_tokens)
            made.append(_one(reading, group, short))
    reading.notes = [note for note in made if note is not None]


def _numbers(notes: Sequence[Note]) -> list[int]:
    return sorted({number for note in notes for number in note.pieces})


def _one(reading: BrowseRun, notes: Sequence[Note], text: str) -> Note:
    spans = (span for note in notes for span in note.spans)
    return reading.noted(text, spans, _numbers(notes))


def guess(reading: BrowseRun, options: Sequence[str], why: NoAnswer) -> FetchingFlow[Browsed]:
    """Chooses the likeliest option by one more prompt: from notes, or the pieces that fit best.

    Without a call left, or a reply of use, it is the one whose words fit best.
    """

    def read(_: int, reply: str) -> tuple[Action, str, str]:
        option = read_guess(reply, options)
        return Action.ANSWER, option, option

    ask = yield from _guess_ask(reading, options)
    chosen, by = "", "by its words"
    if ask and reading.calls_left > 0:
        found, _ = yield from reading.aggregate({0: ask}, read, shown={})
        chosen, by = found.get(0, ""), "by the model" if found else by
    if not chosen:
        known = " ".join(note.text for note in reading.notes) or reading.prompts.query
        chosen = options[best_position(known, list(enumerate(options)))]
    told = f"a guess {by} among the options: {why.value}"
    yield from reading.tell(EventKind.END, Action.ANSWER, text=chosen, reasoning=told)
    return Browsed(
        text=chosen,
        no_answer=None,
        spans=(),
        calls=reading.calls,
        guessed=True,
        passed=reading.passed,
    )


def _guess_ask(reading: BrowseRun, options: Sequence[str]) -> FetchingFlow[ModelRequest | None]:
    """Returns the prompt of a guess; None without a call left, or room for the options."""
    prompts = reading.prompts
    room = prompts.guess_free(options)
    if reading.calls_left < 1 or room < 0:
        return None
    notes, cost = list[Note](), 0
    for note in reading.notes:
        cost += note.cost
        if cost > room:
            break
        notes.append(note)
    if notes or BrowseAction.RETRIEVE not in reading.request.actions:
        return prompts.guess(options, notes=reading.shown(notes))
    query = reading.searched
    found = yield from reading.retrieve(query)
    yield from reading.tell(EventKind.RETRIEVAL, Action.NONE, text=query, shown=reading.ids(found))
    fitting = reading.fitting(found, room)
    pieces = (yield from reading.pieces(fitting)) if fitting else ()
    return prompts.guess(options, parts=[part for piece in pieces for part in piece.parts])
