"""The pcc reader: answers from a state memory's working context."""

from service.domain.answers.drafting import room_for
from service.domain.answers.trajectory import NoAnswer
from service.domain.state import asking as pcc
from service.domain.state.spec import StateSpec
from service.domain.state.triggers import SizedStep
from service.domain.state.working_context import WorkingContext
from service.domain.values.work_items import WorkItem
from service.llm.gateway.driver import drive
from service.llm.providers.facts import ModelFacts
from service.usecases.answers.readers.answering import MadeAnswer, ReaderKit
from service.usecases.answers.readers.tracing_back import AnswerTracer
from storage.answers.answers import StoredAnswer
from storage.engine.database import Transaction
from storage.log import chunks
from storage.state import vectors

#: Bytes of recent steps that are read for each token of the window. Hardly a token has
#: more, so what is longer fits into no prompt, and need not be read to know that.
BYTES_PER_TOKEN = 16
#: Why there is no answer.
NO_ANSWER_TEXTS = {
    NoAnswer.UNREADABLE: "There is no answer: three replies of the model in a row had none.",
    NoAnswer.NOT_FOUND: "There is no answer in the working context.",
    NoAnswer.EMPTY: "There is no answer: the memory has no steps yet.",
}


class ContextReader:
    """Answers from working contexts in one worker process."""

    def __init__(self, kit: ReaderKit) -> None:
        self._kit = kit

    async def answer(self, item: WorkItem, asked: StoredAnswer) -> MadeAnswer:
        """Answers from the context, and cites the chunks that the answer rests on.

        Raises ModelFailure, TextTooLong.
        """
        spec = StateSpec.of(asked)
        model = spec.model or self._kit.config.model
        facts = self._kit.facts(model)
        async with self._kit.database.transaction(item.tenant_id, name="answer") as tx:
            context = await _context(tx, asked, facts)
        flow = pcc.answer(
            context,
            asked.worded,
            spec=spec,
            **facts.terms(self._kit.marker_key),
        )
        draft = await drive(flow, lambda ask: self._kit.calls.call(item, asked, ask, model))
        if draft.no_answer is not None:
            return MadeAnswer.none(model, draft.no_answer, NO_ANSWER_TEXTS[draft.no_answer])
        if draft.is_cut:
            await self._kit.calls.tell_cut(item, asked, draft.text)
        async with self._kit.database.transaction(item.tenant_id, name="answer") as tx:
            tracer = AnswerTracer(tx, (asked.session_key, asked.memory_id), spec, asked.revision)
            citations = await tracer.cite(context, draft, asked.query)
        return MadeAnswer(text=draft.text, citations=citations, model=model, truncated=draft.is_cut)


async def _context(tx: Transaction, asked: StoredAnswer, facts: ModelFacts) -> WorkingContext:
    """Reads the working context as it was when the question came. Raises TextTooLong."""
    state = await vectors.read_state(tx, asked.session_key, asked.memory_id, asked.revision)
    assert state is not None, "the answer's foreign key keeps its revision"
    after, head = state.applied_position, asked.applied_position
    most = facts.window_tokens * BYTES_PER_TOKEN
    found = await chunks.read_ranges(tx, asked.session_key, [(after, head)], most)
    recent = [SizedStep.of(logged) for logged in found.get(after, ())]
    if len(recent) < head - after:
        raise pcc.too_long(f"more than {most} bytes", room_for(facts.window_tokens))
    return WorkingContext(state=state, recent=recent)
