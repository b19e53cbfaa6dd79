"""The questions of a session: asking, resuming, listing, cancelling, rating, and what was read."""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Unpack

from palimpsest import asking, values
from palimpsest.answer_values import AnswerStatus, Options, Question, Rating
from palimpsest.answers import (
    ASK_SECONDS,
    Answers,
    AnswerStream,
    Hears,
    HearsMany,
    question_of,
)
from palimpsest.connection import Connection
from palimpsest.errors import PalimpsestError
from palimpsest.navigation_values import TrainingExample, TrajectoryEvent


class SessionQuestions:
    """What `palimpsest.session.Session` can be asked; callers have it as part of that."""

    def __init__(self, client: Connection, name: str) -> None:
        self.name = name
        self._client = client
        self._answers = Answers(client, name)

    async def ask(
        self,
        query: str | Question,
        *,
        timeout: float = ASK_SECONDS,
        on_event: Hears | None = None,
        **said: Unpack[Options],
    ) -> values.Answer:
        """Asks the session; the answer with its citations.

        `said` is what `palimpsest.Question` has besides the words. Without a memory the log
        is read by the reader that is named, or the automatic one chooses. `on_event` hears
        where it reads and each event as it happens. A connection that is lost while the
        answer is made is opened again, and no event is heard twice. An answer that comes too
        late is not lost: the error's metadata names it for `resume_answer`. Until then it is
        made for a minute at most, unless it is `unattended`.

        Raises ValueError or TypeError for what cannot be sent, InvalidArgument, NotFound,
        FailedPrecondition (stalled; another kind; no answer could be made), Cancelled,
        DeadlineExceeded, ResourceExhausted.
        """
        question = question_of(query, dict(said))
        return await self._answers.ask(question, timeout=timeout, on_event=on_event)

    def stream_ask(
        self,
        query: str | Question,
        *,
        timeout: float = ASK_SECONDS,
        on_event: Hears | None = None,
        **said: Unpack[Options],
    ) -> AnswerStream:
        """As `ask`: iterate over what it returns for the text as it is written.

        Its `answer` is there behind the last piece.
        """
        question = replace(question_of(query, dict(said)), stream=True)
        return AnswerStream(self._answers.told(question, timeout), on_event)

    async def ask_all(
        self,
        queries: Iterable[str | Question],
        *,
        timeout: float = ASK_SECONDS,
        on_event: HearsMany | None = None,
        **said: Unpack[Options],
    ) -> Sequence[values.Answer | PalimpsestError]:
        """Asks many questions, 32 at once; their answers in the same order.

        32 are stored together, or none of them when one is invalid. Where a question fails
        the error stands in the answer's place, and the others go on. `on_event` hears the
        number of the question (0, 1, 2 …) and what is told of it. `timeout` is that of 32.
        """
        asked = [question_of(one, dict(said)) for one in queries]
        return await self._answers.ask_all(asked, timeout=timeout, on_event=on_event)

    async def resume_answer(
        self,
        answer_id: str,
        *,
        after_event: int = 0,
        after_text: int = 0,
        timeout: float = ASK_SECONDS,
        on_event: Hears | None = None,
    ) -> values.Answer:
        """Waits on for an answer; hears what comes behind an event and a piece of text.

        One that is abandoned goes on, from the model calls that are paid.

        Raises NotFound, and as `ask`.
        """
        return await self._answers.resume(
            answer_id,
            after_event=after_event,
            after_text=after_text,
            timeout=timeout,
            on_event=on_event,
        )

    async def answer(self, answer_id: str) -> values.Answer:
        """Reads a stored answer; one that is pending is made on for a while. Raises NotFound."""
        return await self._answers.get(answer_id)

    def answers(
        self, *, memory: str = "", status: AnswerStatus | None = None
    ) -> AsyncIterator[values.Answer]:
        """The stored answers, newest first: of a memory, with a status, or all.

        Raises NotFound.
        """
        return self._answers.list(memory, status)

    async def cancel_answer(self, answer_id: str) -> values.Answer:
        """Ends the work on an answer; returned as it is then. Raises NotFound.

        One that has ended before stays as it is.
        """
        return await self._answers.cancel(answer_id)

    async def rate(
        self, answer_id: str, *, good: bool, comment: str = "", expected: str = ""
    ) -> Rating:
        """Says whether a complete answer was good; the last rating counts.

        `expected` is what would have been right. Raises NotFound, FailedPrecondition.
        """
        return await self._answers.rate(answer_id, good=good, comment=comment, expected=expected)

    def trajectory(self, answer_id: str) -> AsyncIterator[TrajectoryEvent]:
        """What the reader of an answer did, in order. Raises NotFound."""
        return asking.trajectory(self._client, self.name, answer_id)

    def export_trajectories(
        self, answer_ids: Iterable[str] = (), *, good: bool | None = None
    ) -> AsyncIterator[TrainingExample]:
        """The moves of browsings of the log that found an answer, to train a model with.

        As `Memory.export_trajectories` has those of navigations. Raises NotFound.
        """
        return asking.Asking(self._client, self.name, "").export(answer_ids, good)
