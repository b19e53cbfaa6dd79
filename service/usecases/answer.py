"""Answering: a worker makes the answer to a stored question."""

from collections.abc import Callable

from service.config import Config
from service.domain.fail_points import FailPoint, reach
from service.domain.prices import ModelPrices
from service.domain.readers import ReaderName
from service.domain.specs import MemoryKind, kind_of
from service.domain.work import WorkItem
from service.llm.facts import ModelFacts
from service.llm.gateway import Gateway
from service.usecases import guard_meters
from service.usecases.cancelling import InHand
from service.usecases.guard_meters import Guard
from service.usecases.making import Maker
from service.usecases.readers.answering import AnswerCalls, Reader, ReaderKit
from service.usecases.readers.auto import AutoReader
from service.usecases.readers.dciso import Browser, OpensRanks
from service.usecases.readers.memwalker import Navigator
from service.usecases.readers.options import ChoosingReader
from service.usecases.readers.pcc import ContextReader
from service.usecases.readers.prism import PrismReader
from service.usecases.readers.reading_facts import Knowledge
from service.usecases.readers.whole import WholeReader
from service.usecases.shaping import Shaper
from storage import answer_texts, answers, interest
from storage.answers import StoredAnswer
from storage.database import Database, Transaction


class Answerer(Maker[StoredAnswer]):
    """Makes answers in one worker process."""

    def __init__(
        self,
        database: Database,
        gateway: Gateway,
        facts: Callable[[str], ModelFacts],
        marker_key: bytes,
        config: Config,
        *,
        prices: Callable[[str], ModelPrices] | None = None,
        ranks: OpensRanks | None = None,
    ) -> None:
        """Without `ranks` nobody browses."""
        super().__init__(database, gateway, marker_key, config)
        calls = AnswerCalls(database, gateway)
        kit = ReaderKit(
            database=database, calls=calls, facts=facts, marker_key=marker_key, config=config
        )
        self._shaper = Shaper(calls, facts, marker_key)
        #: What is being made here, so that it ends when somebody cancels it.
        self.in_hand = InHand(database, gateway)
        self._navigator = Navigator(kit)
        self._readers: dict[MemoryKind, Reader] = {
            MemoryKind.PRISM: PrismReader(kit),
            MemoryKind.TREE: self._navigator,
            MemoryKind.STATE: ContextReader(kit),
        }
        self._log_readers: dict[ReaderName, Reader] = {ReaderName.WHOLE: WholeReader(kit)}
        if ranks is not None:
            self._log_readers[ReaderName.DCISO] = Browser(kit, ranks)
        known = Knowledge(
            facts=facts,
            prices=prices,
            config=config,
            marker_key=marker_key,
            browses=ReaderName.DCISO in self._log_readers,
        )
        self._log_readers[ReaderName.AUTO] = AutoReader(database, calls, known, self._reader)

    async def make(self, item: WorkItem) -> None:
        """Makes what is pending, until somebody cancels it."""
        await self.in_hand.run(item, super().make(item))

    async def find(self, tx: Transaction, item: WorkItem) -> StoredAnswer | None:
        """The question."""
        return await answers.get(tx, item.session_key, item.item_id)

    async def is_wanted(self, item: WorkItem, wanted: StoredAnswer) -> bool:
        """Whether somebody waits for it, or will have it in any case."""
        key = (wanted.session_key, wanted.answer_id)
        if not (wanted.is_left or wanted.is_unwanted):
            return True
        async with self._database.transaction(item.tenant_id, name="answer") as tx:
            if wanted.is_unwanted:
                gone = await interest.abandon(tx, key)
            else:
                gone = await interest.put_aside(tx, key)
        return not gone

    async def produce(self, item: WorkItem, wanted: StoredAnswer) -> None:
        """Reads the memory or the log as it was when the question came."""
        made = await self._reader(wanted).answer(item, wanted)
        made = await self._shaper.shape(item, wanted, made)
        reach(FailPoint.ANSWER_MADE)
        async with self._database.transaction(item.tenant_id, name="answer") as tx:
            if wanted.tells_text:
                await answer_texts.settle(tx, (wanted.session_key, wanted.answer_id), made.text)
            is_first = await answers.complete(
                tx,
                wanted.session_key,
                wanted.answer_id,
                text=made.text,
                citations=made.citations,
                model=made.model,
                no_answer=made.no_answer,
                failure=made.failure,
                statistics=made.statistics,
                value=made.value,
                guessed=made.guessed,
                truncated=made.truncated,
                left_out=made.left_out,
            )
            reach(FailPoint.ANSWER_WRITTEN)
        reach(FailPoint.ANSWERED)
        if not is_first:
            guard_meters.kept(Guard.ANSWER_SETTLED)

    def _reader(self, wanted: StoredAnswer) -> Reader:
        """Who reads, and answers with one of the options where there are any."""
        reader = self._who_reads(wanted)
        if not wanted.options or isinstance(reader, Navigator | AutoReader):
            # Who navigates is shown the options, and whom the automatic reader chooses is here.
            return reader
        return ChoosingReader(reader, self._shaper)

    def _who_reads(self, wanted: StoredAnswer) -> Reader:
        """Whom the question names, else the reader of the memory's kind."""
        if wanted.reader in self._log_readers:
            return self._log_readers[wanted.reader]
        if wanted.asked_memory is None:
            return self._log_readers[ReaderName.AUTO]
        if wanted.navigation is not None:
            return self._navigator
        return self._readers[kind_of(wanted.spec)]
