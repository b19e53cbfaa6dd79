"""Shapes answers into the form that their questions ask for."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.domain.answers.shaping import SHAPE, Check, ShapeContent, Shaped, shape
from service.domain.answers.trajectory import Action, Event, EventKind, NoAnswer, reply_fields
from service.domain.values.errors import InvalidInput
from service.domain.values.json_values import canonical
from service.domain.values.reasons import Reason
from service.domain.values.work_items import WorkItem
from service.llm.gateway.driver import drive
from service.usecases.answers.readers.answering import MadeAnswer, ReaderKit
from service.usecases.answers.response_forms import checker, read_form
from storage.answers.answers import StoredAnswer

#: Why there is no answer.
UNFIT_TEXT = "There is no answer in the form that was asked for: no reply of the model fits it."


def check_response_schema(text: str) -> dict[str, Any]:
    """Returns the JSON Schema of a question.

    Raises InvalidInput for text that is none, is too large or too deep, or refers to
    something outside of itself.
    """
    try:
        return read_form(text)
    except ValueError as error:
        message = f"response_schema: {error}"
        raise InvalidInput(Reason.FIELD_INVALID, message, field="response_schema") from error


class Shaper:
    """Shapes answers in one worker process."""

    def __init__(self, kit: ReaderKit) -> None:
        self._kit = kit

    async def shape(self, item: WorkItem, asked: StoredAnswer, made: MadeAnswer) -> MadeAnswer:
        """Returns the answer with its value, by the model that read; without one when none fits.

        An answer that is none has nothing to be shaped, and stays as it is. Each try is
        an event after those of the reader. Raises ModelFailure.
        """
        if asked.response_schema is None or made.no_answer is not None:
            return made
        shaped, _ = await self.shaped(
            item,
            asked,
            made,
            asked.response_schema,
            checker(asked.response_schema),
            after=made.events,
        )
        if not shaped.fits:
            return replace(made, no_answer=NoAnswer.UNREADABLE, failure=UNFIT_TEXT)
        return replace(made, value=shaped.value)

    async def shaped(
        self,
        item: WorkItem,
        asked: StoredAnswer,
        made: MadeAnswer,
        schema: Mapping[str, Any],
        check: Check,
        *,
        after: int,
    ) -> tuple[Shaped, int]:
        """Shapes an answer by a schema; returns also the ordinal of its last event.

        Its events follow `after`, and all others there. Raises ModelFailure.
        """
        model, calls = made.model, self._kit.calls
        flow = shape(
            ShapeContent(
                query=asked.query,
                answer=made.text,
                excerpts=tuple(one.excerpt for one in made.citations),
                schema=schema,
            ),
            check=check,
            **self._kit.facts(model).terms(self._kit.marker_key),
        )
        shaped: Shaped = await drive(flow, lambda ask: calls.call(item, asked, ask, model))
        first = await calls.next_ordinal(item, asked, EventKind.SHAPING, after)
        await self._tell(item, asked, shaped, first)
        return shaped, first + len(shaped.tries) - 1

    async def _tell(self, item: WorkItem, asked: StoredAnswer, shaped: Shaped, first: int) -> None:
        for number, one in enumerate(shaped.tries):
            event = Event(
                ordinal=first + number,
                kind=EventKind.SHAPING,
                action=Action.INVALID if one.fault else Action.ANSWER,
                attempt=number + 1,
                text=one.fault or canonical(shaped.value),
                template=SHAPE,
                **reply_fields([one.reply]),
            )
            await self._kit.calls.record(item, asked, event)
