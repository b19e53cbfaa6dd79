"""The reader of PRISM memories: the final answer (arXiv 2412.18914, algorithm 1, line 6)."""

from service.domain.prism import asking as prism
from service.domain.prism.memory import PrismMemory
from service.domain.prism.spec import PrismSpec
from service.domain.values.work_items import WorkItem
from service.llm.gateway.driver import drive
from service.llm.offloading import beside
from service.usecases.answers.readers.answering import MadeAnswer, ReaderKit
from service.usecases.answers.readers.citing import cite
from storage.answers.answers import StoredAnswer
from storage.prism import states

#: Why there is no answer.
NO_ANSWER_TEXT = "There is no answer in the memory."


class PrismReader:
    """Answers from PRISM memories in one worker process."""

    def __init__(self, kit: ReaderKit) -> None:
        self._kit = kit

    async def answer(self, item: WorkItem, asked: StoredAnswer) -> MadeAnswer:
        """Answers from the memory, and cites the chunks of what the answer rests on.

        Raises ModelFailure, NoUse.
        """
        spec = PrismSpec.of(asked)
        model = spec.model or self._kit.config.model
        facts = self._kit.facts(model)
        async with self._kit.database.transaction(item.tenant_id, name="answer") as tx:
            rows = await states.read_for_prompts(
                tx, asked.session_key, asked.memory_id, asked.revision, spec.encoding
            )
        assert rows is not None, "the answer's foreign key keeps its revision"
        # A large memory takes long; leases are renewed meanwhile.
        memory = await beside(
            PrismMemory.load,
            spec.schema(),
            base_json=rows.base,
            amendments=rows.amendments,
            encoding=spec.encoding,
            count=facts.count,
        )
        flow = prism.answer(
            spec,
            memory,
            asked.worded,
            marker_key=self._kit.marker_key,
            window_tokens=facts.window_tokens,
        )
        draft = await drive(flow, lambda ask: self._kit.calls.call(item, asked, ask, model))
        if draft.no_answer is not None:
            return MadeAnswer.none(model, draft.no_answer, NO_ANSWER_TEXT)
        if draft.is_cut:
            await self._kit.calls.tell_cut(item, asked, draft.text)
        async with self._kit.database.transaction(item.tenant_id, name="answer") as tx:
            key = (asked.session_key, asked.memory_id)
            citations = await cite(tx, key, memory, draft.sources, asked.revision)
        return MadeAnswer(
            text=draft.text,
            citations=citations,
            model=model,
            rests=bool(draft.sources),
            truncated=draft.is_cut,
        )
