"""Makes answers to stored questions, in workers."""

from collections.abc import Callable, Mapping

from service.domain.spend.prices import ModelPrices
from service.domain.values.memory_specs import ReaderName
from service.domain.values.work_items import WorkItem
from service.llm.gateway.gateway import Gateway
from service.llm.providers.facts import ModelFacts
from service.settings.config import Config
from service.usecases.answers.cancelling import ActiveAnswers
from service.usecases.answers.readers.answering import (
    AnswerCalls,
    MemoryReader,
    ReaderKit,
    ReadKind,
)
from service.usecases.answers.readers.auto import AutoReader
from service.usecases.answers.readers.browse import Browser, OpensRanks
from service.usecases.answers.readers.log_range import citable
from service.usecases.answers.readers.memwalker import Navigator
from service.usecases.answers.readers.options import ChoosingReader
from service.usecases.answers.readers.reading_facts import Knowledge
from service.usecases.answers.readers.whole import WholeReader
from service.usecases.answers.shaping import Shaper
from service.usecases.log import metrics
from service.usecases.log.metrics import Guard
from service.usecases.memories.on_demand import OnDemandJob
from storage.answers import answers, interest, texts
from storage.answers.answers import StoredAnswer
from storage.engine.database import Database, Transaction


class Answerer(OnDemandJob[StoredAnswer]):
    """Makes answers in one worker process."""

    def __init__(
        self,
        database: Database,
        gateway: Gateway,
        facts: Callable[[str], ModelFacts],
        marker_key: bytes,
        config: Config,
        *,
        kinds: Mapping[str, ReadKind],
        prices: Callable[[str], ModelPrices] | None = None,
        ranks: OpensRanks | None = None,
    ) -> None:
        """Without `ranks` no log is browsed."""
        super().__init__(database, gateway, marker_key, config)
        kit = ReaderKit(
            database=database,
            calls=AnswerCalls(database, gateway),
            facts=facts,
            marker_key=marker_key,
            config=config,
        )
        self._shaper = Shaper(kit)
        #: The answers that this process is making, so that they end when a client cancels them.
        self.active = ActiveAnswers(database, gateway)
        self._navigator = Navigator(kit)
        self._readers = {name: kind.reader(kit) for name, kind in kinds.items()}
        self._log_readers: dict[ReaderName, MemoryReader] = {ReaderName.WHOLE: WholeReader(kit)}
        if ranks is not None:
            self._log_readers[ReaderName.DCISO] = Browser(kit, ranks)
        browses = ReaderName.DCISO in self._log_readers
        known = Knowledge(kit=kit, kinds=kinds, prices=prices, browses=browses)
        self._log_readers[ReaderName.AUTO] = AutoReader(known, self._reader)

    async def make(self, item: WorkItem) -> None:
        """Completes a pending answer, until a client cancels it."""
        await self.active.run(item, super().make(item))

    async def find(self, tx: Transaction, item: WorkItem) -> StoredAnswer | None:
        """Returns the question."""
        return await answers.get(tx, item.session_key, item.item_id)

    async def is_wanted(self, item: WorkItem, pending: StoredAnswer) -> bool:
        """Returns whether a client waits for it, or it is to be made in any case."""
        key = (pending.session_key, pending.answer_id)
        if not (pending.is_left or pending.is_unwanted):
            return True
        async with self._database.transaction(item.tenant_id, name="answer") as tx:
            if pending.is_unwanted:
                gone = await interest.abandon(tx, key)
            else:
                gone = await interest.put_aside(tx, key)
        return not gone

    async def produce(self, item: WorkItem, pending: StoredAnswer) -> None:
        """Reads the memory or the log as it was when the question came."""
        made = await self._reader(pending).answer(item, pending)
        made = await self._shaper.shape(item, pending, made)
        async with self._database.transaction(item.tenant_id, name="answer.complete") as tx:
            if pending.tells_text:
                await texts.complete(tx, (pending.session_key, pending.answer_id), made.text)
            is_first = await answers.complete(
                tx,
                pending.session_key,
                pending.answer_id,
                text=made.text,
                citations=await citable(tx, pending, made.citations),
                model=made.model,
                no_answer=made.no_answer,
                failure=made.failure,
                statistics=made.statistics,
                value=made.value,
                guessed=made.guessed,
                truncated=made.truncated,
                left_out=made.left_out,
            )
        if not is_first:
            metrics.kept(Guard.ANSWER_SETTLED)

    def _reader(self, pending: StoredAnswer) -> MemoryReader:
        """Returns the reader, which answers with one of the options where there are any."""
        reader = self._who_reads(pending)
        if not pending.options or isinstance(reader, Navigator | AutoReader):
            # A navigator is shown the options, and the automatic reader calls this for its choice.
            return reader
        return ChoosingReader(reader, self._shaper)

    def _who_reads(self, pending: StoredAnswer) -> MemoryReader:
        """Returns the reader that the question names, else that of the memory's kind."""
        if pending.reader in self._log_readers:
            return self._log_readers[pending.reader]
        if pending.asked_memory is None:
            return self._log_readers[ReaderName.AUTO]
        if pending.navigation is not None:
            return self._navigator
        return self._readers[pending.spec.kind]
