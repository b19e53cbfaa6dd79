"""Multiple choice: the answer of a reader that knows of no options becomes one of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from service.domain.answers.options import options_schema, same_option
from service.domain.answers.trajectory import NoAnswer
from service.domain.values.work_items import WorkItem
from service.usecases.answers.readers.answering import MadeAnswer, MemoryReader
from service.usecases.answers.shaping import Shaper
from storage.answers.answers import StoredAnswer

#: Why there is no answer.
NO_ANSWER_TEXTS = {
    NoAnswer.UNREADABLE: "There is no answer: no reply of the model was one of the options.",
    NoAnswer.NOT_FOUND: "There is no answer among the options.",
}


class ChoosingReader:
    """Reads as another reader does, and answers with an option."""

    def __init__(self, reader: MemoryReader, shaper: Shaper) -> None:
        self._reader = reader
        self._shaper = shaper

    async def answer(self, item: WorkItem, asked: StoredAnswer) -> MadeAnswer:
        """Returns the option that the reader's answer is, or means by one more call.

        Raises as the reader, and ModelFailure.
        """
        made = await self._reader.answer(item, asked)
        if made.no_answer is not None:
            return made
        option = same_option(made.text, asked.options)
        if option is not None:
            return replace(made, text=option, truncated=False)
        shaped, last = await self._shaper.shaped(
            item,
            asked,
            made,
            options_schema(asked.options),
            _fault_among(asked.options),
            after=0 if asked.chosen is None else asked.chosen.events,
        )
        # Null is none of them, whatever they are called.
        value = shaped.value
        option = None if value is None else same_option(str(value), asked.options)
        if shaped.fits and option is not None:
            return replace(made, text=option, truncated=False, events=last)
        why = NoAnswer.NOT_FOUND if shaped.fits else NoAnswer.UNREADABLE
        none = MadeAnswer.none(made.model, why, NO_ANSWER_TEXTS[why])
        return replace(none, left_out=made.left_out, events=last)


def _fault_among(options: Sequence[str]) -> Callable[[Any], str]:
    """Says what is wrong with a value; nothing with an option, or with null."""

    def fault(value: Any) -> str:
        # Models write an option that is a number as a number.
        is_one = value is None or same_option(str(value), options) is not None
        return "" if is_one else "it is none of the values that the schema lists"

    return fault
