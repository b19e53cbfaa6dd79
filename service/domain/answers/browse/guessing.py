"""Guessing: an option of a multiple-choice question, where nothing that was read says which."""

from collections.abc import Sequence

from service.domain.answers.browse.pieces import Browsed
from service.domain.answers.browse.reading import BrowseRun, Note
from service.domain.answers.browse.replies import read_guess
from service.domain.answers.browse.spec import BrowseAction
from service.domain.answers.citations import best_position
from service.domain.answers.trajectory import Action, EventKind, NoAnswer
from service.domain.prompting.asking import MAX_TRIES, NoUse, Unusable, text_of
from service.domain.prompting.flows import FetchingFlow, ModelRequest


def guess(reading: BrowseRun, options: Sequence[str], why: NoAnswer) -> FetchingFlow[Browsed]:
    """The likeliest option by one more prompt: from the notes, or the pieces that fit best.

    Without a call left, or a reply of use, the one whose words fit best.
    """
    first = ask = yield from _guess_ask(reading, options)
    chosen, by, tries = "", "by its words", 0
    while first and ask and tries < MAX_TRIES and reading.calls_left > 0:
        tries += 1
        (reply,) = yield from reading.ask([ask])
        fault, again = "", None
        try:
            chosen, by = read_guess(text_of(reply), options), "by the model"
        except Unusable as error:
            fault = str(error)
            again = reading.prompts.again(first, ask, reply, fault)
        except NoUse as error:
            fault = str(error)
        yield from reading.tell(
            EventKind.AGGREGATION,
            Action.INVALID if fault else Action.ANSWER,
            text=fault or chosen,
            ask=ask,
            reply=reply,
        )
        ask = again
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
    """None: there is no call left, or no room for the options."""
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
