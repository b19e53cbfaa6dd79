"""The automatic reader: chooses a reader, records why, and answers by it."""

from collections.abc import Callable
from dataclasses import replace

from service.domain.answers.browse.prompts import prompts_within
from service.domain.answers.browse.spec import BrowseRequest
from service.domain.answers.browse.understanding import Understood, choosable, understand
from service.domain.answers.choosing import Choice, choose, fallback, obvious
from service.domain.answers.trajectory import Action, Event, EventKind, NoAnswer, reply_fields
from service.domain.prompting.fitting import TextTooLong
from service.domain.values.memory_specs import MemorySpec, ReaderName
from service.domain.values.work_items import WorkItem
from service.llm.gateway.driver import drive
from service.usecases.answers.readers.answering import MadeAnswer, MemoryReader
from service.usecases.answers.readers.reading_facts import Gathered, Knowledge, gather
from storage.answers import answers, trajectories
from storage.answers.answers import Chosen, StoredAnswer
from storage.memories import memories

#: Why there is no answer, where the log itself may still have one.
_MISSED = frozenset({NoAnswer.NOT_FOUND, NoAnswer.STEP_LIMIT, NoAnswer.EMPTY})
_OF_LOG = frozenset({ReaderName.DCISO, ReaderName.WHOLE})


class AutoReader:
    """Chooses readers in one worker process."""

    def __init__(self, known: Knowledge, reader_of: Callable[[StoredAnswer], MemoryReader]) -> None:
        """`reader_of` returns the reader of a question that names one."""
        self._known = known
        self._kit = known.kit
        self._reader_of = reader_of

    async def answer(self, item: WorkItem, asked: StoredAnswer) -> MadeAnswer:
        """Answers by the chosen reader; where that has no answer, or guesses, by a second one.

        After a memory that is browsing; after a search for a fact it is a memory.

        The first choice is stored and stays: made again after a failure, the answer is
        read by the same reader at the same place. Raises ModelFailure, TextTooLong.
        """
        chosen = asked.chosen or await self._choose(item, asked)
        made, missed = await self._read(item, asked, chosen)
        if not missed:
            assert made is not None, "what fails with the log itself is raised"
            return made
        again = await self._choose_again(item, asked, chosen, missed)
        found, _ = await self._read(item, asked, again)
        if made is None or found is None:
            either = made or found
            assert either is not None, "what fails with the log itself is raised"
            return either
        # Later events follow those of both.
        best = found if _worth(found) > _worth(made) else made
        return replace(best, events=max(made.events, found.events))

    async def _choose(self, item: WorkItem, asked: StoredAnswer) -> Chosen:
        gathered = await self._gather(item, asked)
        understood = None
        choice = obvious(gathered.facts)
        if choice is None:
            understood = await self._understand(item, asked)
            choice = choose(gathered.facts, understood.result)
        chosen = _chosen(choice, asked, gathered, events=1)
        async with self._kit.database.transaction(item.tenant_id, name="answer") as tx:
            kept = await answers.choose(tx, asked.session_key, asked.answer_id, chosen)
            if kept is chosen:
                event = _event(chosen, understood)
                await trajectories.append(tx, (asked.session_key, asked.answer_id), event)
        return kept

    async def _gather(self, item: WorkItem, asked: StoredAnswer) -> Gathered:
        async with self._kit.database.transaction(item.tenant_id, name="answer") as tx:
            return await gather(tx, asked, self._known)

    async def _understand(self, item: WorkItem, asked: StoredAnswer) -> Understood:
        model = asked.wanted_model or self._kit.config.model
        request = asked.browsing or BrowseRequest()
        terms = self._kit.facts(model).terms(self._kit.marker_key)
        prompts = prompts_within(asked.query, request, **terms)
        flow = understand(prompts, choosable(request))
        return await drive(flow, lambda ask: self._kit.calls.call(item, asked, ask, model))

    async def _read(
        self, item: WorkItem, asked: StoredAnswer, chosen: Chosen
    ) -> tuple[MadeAnswer | None, str]:
        """Returns the chosen reader's answer, and why browsing might find more; else ""."""
        told = as_chosen(asked, chosen, None)
        of_log = chosen.reader in _OF_LOG
        is_last = chosen.otherwise is None and (of_log or not self._known.browses)
        if chosen.memory_id is not None:
            async with self._kit.database.transaction(item.tenant_id, name="answer") as tx:
                stored = await memories.get(tx, asked.session_key, chosen.memory_id)
            assert stored is not None, "memories are never deleted"
            told = as_chosen(asked, chosen, stored.spec)
        try:
            made = await self._reader_of(told).answer(item, told)
        except TextTooLong:
            if is_last or of_log:
                raise
            return None, f"Memory {chosen.memory_name!r} does not fit the window of its model"
        if not is_last and (made.no_answer in _MISSED or made.guessed or not made.rests):
            return made, f"Memory {chosen.memory_name!r} has no answer"
        return made, ""

    async def _choose_again(
        self, item: WorkItem, asked: StoredAnswer, first: Chosen, why: str
    ) -> Chosen:
        """Chooses what the first choice names, else browsing.

        Its events follow those of the reader that found nothing.
        """
        events = await self._kit.calls.next_ordinal(item, asked, EventKind.CHOICE, after=1)
        if first.otherwise is not None:
            chosen = replace(first.otherwise, events=events)
        else:
            gathered = await self._gather(item, asked)
            chosen = _chosen(fallback(gathered.facts, why), asked, gathered, events=events)
        await self._kit.calls.record(item, asked, _event(chosen, None))
        return chosen


def as_chosen(asked: StoredAnswer, chosen: Chosen, spec: MemorySpec | None) -> StoredAnswer:
    """Returns a question as the chosen reader answers it; `spec`: of the memory that it reads."""
    return replace(
        asked,
        reader=chosen.reader,
        chosen=chosen,
        asked_memory=chosen.memory_id,
        memory_name=chosen.memory_name,
        asked_spec=spec,
        revision=chosen.revision,
        applied_position=chosen.applied_position,
        navigation=chosen.navigation,
        browsing=chosen.browsing,
    )


def _worth(made: MadeAnswer) -> int:
    """Ranks an answer: nothing, a guess, what rests on nothing, an answer."""
    if made.no_answer is not None:
        return 0
    return 1 if made.guessed else 2 + made.rests


def _chosen(choice: Choice, asked: StoredAnswer, gathered: Gathered, *, events: int) -> Chosen:
    memory, second = choice.memory, choice.otherwise
    if memory is None:
        revision, applied = 0, asked.applied_position
    else:
        revision = memory.revision
        # A state memory is read at the log's position when the question came, or as it is now.
        stored = gathered.memories[memory.memory_id]
        applied = max(memory.applied_position, stored.applied_position)
    return Chosen(
        reader=choice.reader,
        memory_id=None if memory is None else memory.memory_id,
        memory_name="" if memory is None else memory.name,
        revision=revision,
        applied_position=applied,
        reason=choice.reason,
        expected_tokens=choice.expected_tokens,
        navigation=choice.navigation,
        browsing=choice.browsing,
        events=events,
        otherwise=None if second is None else _chosen(second, asked, gathered, events=events),
    )


def _event(chosen: Chosen, understood: Understood | None) -> Event:
    """Returns the event of a choice: what, why, and what understanding the question cost."""
    exchanges = understood.exchanges if understood else ()
    said = chosen.reader.value
    if chosen.browsing is not None:
        said = f"{said}, {chosen.browsing.option.value}"
    return Event(
        ordinal=chosen.events,
        kind=EventKind.CHOICE,
        action=Action.NONE,
        to_position=chosen.applied_position,
        from_position=min(chosen.applied_position, 1),
        attempt=max(len(exchanges), 1),
        targets=(chosen.memory_name,) if chosen.memory_name else (),
        text=f"{said} of {chosen.memory_name}" if chosen.memory_name else said,
        reasoning=chosen.reason,
        template=exchanges[-1].ask.template if exchanges else "",
        **reply_fields([one.reply for one in exchanges]),
    )
