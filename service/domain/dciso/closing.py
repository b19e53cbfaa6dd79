"""Closing: the answer from what was extracted (algorithm 1, line 12).

ANSWER is short, AGGREGATION long. Notes that do not fit into one prompt are made fewer
first: in groups, level by level, each level in one batch.
"""

from collections.abc import Sequence
from dataclasses import replace

from service.domain.dciso.pieces import Piece, Span
from service.domain.dciso.prompts import Again, held_to
from service.domain.dciso.quoting import MAX_SPANS, best_fitting, best_of, best_span, spans_of
from service.domain.dciso.reading import ACTIONS, MAX_ATTEMPTS, Note, Reading, grouped
from service.domain.dciso.replies import Parts, Unclear, split_reply
from service.domain.dciso.result import Browsed
from service.domain.dciso.spec import BrowseAction
from service.domain.dciso.understood import Subject
from service.domain.flows import LookingFlow
from service.domain.shortening import ELLIPSIS, shortened
from service.domain.trajectory import Action, EventKind, NoAnswer


def close(reading: Reading) -> LookingFlow[Browsed]:
    """The answer from all notes; without any there is none."""
    if not reading.notes:
        return (yield from fail(reading, _why(reading)))
    free = reading.prompts.closing_free
    while sum(note.cost for note in reading.notes) > free:
        yield from _condense(reading)
        if not reading.notes:
            return (yield from fail(reading, NoAnswer.NOT_FOUND))
    return (yield from _answer(reading, notes=reading.notes))


def close_from(reading: Reading, pieces: Sequence[Piece]) -> LookingFlow[Browsed]:
    """The answer from the pieces themselves, which fit into one prompt."""
    for piece in pieces:
        # No move was chosen at any of them; where they stand is to be known all the same.
        yield from reading.tell(
            EventKind.PIECE, Action.NONE, frame=reading.frame(piece.frame.number)
        )
    return (yield from _answer(reading, pieces=pieces))


def fail(reading: Reading, why: NoAnswer) -> LookingFlow[Browsed]:
    """No answer."""
    yield from reading.tell(EventKind.END, Action.NONE, text=why.value)
    return Browsed(text="", no_answer=why, spans=(), calls=reading.calls)


def succeed(reading: Reading, text: str, spans: Sequence[Span]) -> LookingFlow[Browsed]:
    """An answer, and where in the log it stands."""
    yield from reading.tell(EventKind.END, Action.ANSWER, text=text)
    found = best_fitting(text, tuple(dict.fromkeys(spans)), MAX_SPANS)
    return Browsed(text=text, no_answer=None, spans=found, calls=reading.calls)


def _why(reading: Reading) -> NoAnswer:
    if reading.stopped:
        return NoAnswer.STEP_LIMIT
    if reading.unreadable and not reading.readable:
        return NoAnswer.UNREADABLE
    return NoAnswer.NOT_FOUND


def closing_action(reading: Reading) -> BrowseAction:
    """AGGREGATION for what concerns the whole, else ANSWER; the only one where one is allowed."""
    long = BrowseAction.AGGREGATION
    if long in reading.request.actions and (
        reading.subject is Subject.OVERVIEW or BrowseAction.ANSWER not in reading.request.actions
    ):
        return long
    return BrowseAction.ANSWER


def _answer(
    reading: Reading, *, notes: Sequence[Note] = (), pieces: Sequence[Piece] = ()
) -> LookingFlow[Browsed]:
    action = closing_action(reading)
    parts = [part for piece in pieces for part in piece.parts]
    shown = sorted({n for note in notes for n in note.pieces}) or [p.frame.number for p in pieces]
    again = Again()
    while again.attempt <= MAX_ATTEMPTS:
        if reading.calls_left < 1:
            return (yield from fail(reading, NoAnswer.STEP_LIMIT))
        ask = reading.prompts.close(action, notes=reading.shown(notes), parts=parts, again=again)
        (reply,) = yield from reading.ask([ask])
        said, fault = _read_answer(reply.text, is_last=again.attempt == MAX_ATTEMPTS)
        done = ACTIONS[action] if said.text else Action.NONE
        yield from reading.tell(
            EventKind.AGGREGATION,
            Action.INVALID if fault else done,
            shown=reading.ids(shown),
            text=fault or said.text,
            ask=ask,
            reply=reply,
        )
        if fault:
            again = Again(attempt=again.attempt + 1, fault=fault)
            continue
        if not said.text:
            return (yield from fail(reading, NoAnswer.NOT_FOUND))
        if notes:
            spans = _sourced(reading, said, notes)
        else:
            spans = spans_of(said.quotes, parts) or (
                best_span(said.text, parts, around=reading.prompts.query),
            )
        return (yield from succeed(reading, said.text, spans))
    return (yield from fail(reading, NoAnswer.UNREADABLE))


def _read_answer(reply: str, *, is_last: bool) -> tuple[Parts, str]:
    """The answer of a reply, without text where it says that there is none; and its fault."""
    try:
        said = split_reply(reply)
    except Unclear as unclear:
        return Parts(), str(unclear)
    if said.is_null:
        return Parts(), "" if said.text or said.is_named else "it has no text"
    if said.is_cut:
        # The last one is taken as far as it goes, and shows that it goes on.
        fault = "" if is_last else "its text is too long"
        return replace(said, text=said.text + ELLIPSIS), fault
    return said, ""


def _sourced(reading: Reading, said: Parts, notes: Sequence[Note]) -> tuple[Span, ...]:
    """Where the notes stand that an answer names, or else the place that fits it best."""
    named = [notes[number - 1] for number in said.sources if 1 <= number <= len(notes)]
    if named:
        return tuple(span for note in named for span in note.spans)
    every = [span for note in notes for span in note.spans]
    return (best_of(said.text, every, around=reading.prompts.query),)


def _condense(reading: Reading) -> LookingFlow[None]:
    """Makes one of each group of notes that fits into a prompt."""
    prompts, notes = reading.prompts, reading.notes
    costs = [note.cost for note in notes]
    groups = [[notes[at] for at in group] for group in grouped(costs, prompts.closing_free)]
    made: dict[int, Note | None] = {
        number: group[0] for number, group in enumerate(groups) if len(group) == 1
    }
    waiting = {number: Again() for number in range(len(groups)) if number not in made}
    while waiting:
        asks = [
            prompts.condense(reading.shown(groups[number]), again)
            for number, again in waiting.items()
        ]
        replies = yield from reading.ask(asks)
        failed: dict[int, Again] = {}
        for (number, again), ask, reply in zip(waiting.items(), asks, replies, strict=True):
            fault, text = "", ""
            try:
                said = split_reply(reply.text)
                text = "" if said.is_null else _limited(reading, said.text)
                made[number] = _one(reading, groups[number], text) if text else None
            except Unclear as unclear:
                fault = str(unclear)
                failed[number] = Again(attempt=again.attempt + 1, fault=fault)
            yield from reading.tell(
                EventKind.AGGREGATION,
                Action.INVALID if fault else Action.AGGREGATE if text else Action.NONE,
                shown=reading.ids(_numbers(groups[number])),
                text=fault or text,
                ask=ask,
                reply=reply,
            )
        waiting = _retried(reading, failed)
        for number in failed.keys() - waiting.keys():
            joined = "\n".join(note.text for note in groups[number])
            made[number] = _one(reading, groups[number], _limited(reading, joined))
    ordered = (made[number] for number in range(len(groups)))
    reading.notes = [note for note in ordered if note is not None]


def _retried(reading: Reading, failed: dict[int, Again]) -> dict[int, Again]:
    """Those to be asked again: none where the calls are needed for what comes after."""
    left = {number: again for number, again in failed.items() if again.attempt <= MAX_ATTEMPTS}
    # Never fewer than the levels above this one take, however the groups come out.
    spare = reading.calls_left - reading.closing_calls()
    return dict(list(left.items())[: max(spare, 0)])


def _limited(reading: Reading, text: str) -> str:
    limit = reading.prompts.note_tokens
    return held_to(shortened(text, limit, reading.prompts.count), limit, reading.prompts.count)


def _numbers(notes: Sequence[Note]) -> list[int]:
    return sorted({number for note in notes for number in note.pieces})


def _one(reading: Reading, notes: Sequence[Note], text: str) -> Note:
    spans = (span for note in notes for span in note.spans)
    return reading.noted(text, spans, _numbers(notes))
