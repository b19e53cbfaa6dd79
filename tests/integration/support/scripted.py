"""A memory in a database of the test's own, and a model that follows a script."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any
from uuid import UUID

from service.app.kinds import KINDS
from service.domain.prism.spec import FOLD_TOKENS, Encoding, PrismSpec
from service.domain.prompting.flows import ModelRequest, Purpose
from service.domain.prompting.tokens import estimate_tokens
from service.domain.spend.prices import ModelPrices
from service.domain.state.spec import StateSpec
from service.domain.state.vectors import first_state
from service.domain.tree.spec import TreeSpec
from service.domain.values.memory_specs import MemorySpec
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.llm.gateway.gateway import Gateway
from service.llm.providers.facts import ModelFacts
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import Completion
from service.settings.config import Config
from service.usecases.answers.answer import Answerer
from service.usecases.answers.readers.browse import OpensRanks
from service.usecases.answers.readers.browsed_log import Ranks
from service.usecases.memories.step_engine import StepEngine
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import memories
from storage.memories.memories import StoredMemory
from storage.state import vectors
from tests.integration.support.ranks import Ranked
from tests.integration.support.writing import append_texts
from tests.support.completions import completion
from tests.support.gateways import SHORT_LEASE_SECONDS, gateway
from tests.support.prices import PLAIN
from tests.support.step_engines import step_engine

KEY = session_key(DEFAULT_TENANT, "s")
MEMORY = memory_id(KEY, "m")
ITEM = WorkItem(kind=WorkKind.MEMORY, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=MEMORY)
#: Three children need a summary of their own, two do not.
TREE = TreeSpec(segment_tokens=64, max_children=3, summary_tokens=20, model="test/scripted")
#: Three steps make a vector.
STATE = StateSpec(task="Find the town.", period=3, state_tokens=64, model="test/scripted")
#: Folded by size, so that what is counted in most tests does not depend on prices.
SPEC = PrismSpec(
    schema_source="class N:\n    topics: dict[str, str]\n",
    chunk_tokens=1,
    model="test/scripted",
    encoding=Encoding.AMENDMENTS,
    fold_tokens=FOLD_TOKENS,
)


@dataclass
class Script:
    """A model that fails a given number of times, and then adds a topic a call."""

    failures: list[Exception] = field(default_factory=list)
    asked: list[ModelRequest] = field(default_factory=list)
    #: Called while the model thinks.
    meanwhile: Any = None
    #: What it says to the n-th ask, from 1; None: as above.
    reply: Callable[[ModelRequest, int], str] | None = None

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        self.asked.append(ask)
        if self.failures:
            raise self.failures.pop(0)
        if self.meanwhile is not None:
            await self.meanwhile()
        text = f'[OBJECTS FOR ADD]\n{{"$.topics.t{len(self.asked)}": {{"add": "x"}}}}'
        if self.reply is not None:
            text = self.reply(ask, len(self.asked))
        elif ask.purpose is Purpose.ANSWER:
            text = "[ANSWER]\nIt is x.\n[PATHS]\n$.topics.t1\n"
        return completion(text, model)


def fail_at(script: Script, call: int) -> None:
    """Has the model be busy at its n-th call, from 1, and never again."""
    calls = count(1)

    async def fails() -> None:
        if next(calls) == call:
            raise ModelFailure("busy", retryable=True)

    script.meanwhile = fails


async def die_in_call(
    script: Script, call: int, making: Coroutine[Any, Any, None]
) -> asyncio.Event:
    """Runs a worker, and kills it while its model thinks for the n-th time, from 1.

    The call continues, as in a process of its own, once what is returned is set.
    """
    reached, release = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        if len(script.asked) == call:
            reached.set()
            await release.wait()

    script.meanwhile = hang
    dying = asyncio.create_task(making)
    await asyncio.wait_for(reached.wait(), 60)
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    return release


def summary_reply(ask: ModelRequest, number: int) -> str:
    """Returns a summary of nine tokens that depends on the prompt alone."""
    return f"Part {hashlib.sha256(ask.text.encode()).hexdigest()[:16]} is about it."


def vector_reply(ask: ModelRequest, number: int) -> str:
    """Returns a state vector of nine tokens that depends on the prompt alone."""
    return f"State {hashlib.sha256(ask.text.encode()).hexdigest()[:16]} is reached."


#: No turn ends because the machine is slow.
#: Without the wait of small talk: texts of tests are short.
CONFIG = Config(step_backoff_seconds=0.001, step_tries=3, drain_seconds=600, small_talk_tokens=0)


def no_ranks(*_: object) -> Ranks:
    """Retrieval for answers that need none."""
    return Ranked()


def answerer(
    database: Database,
    calls: Gateway,
    config: Config = CONFIG,
    *,
    ranks: OpensRanks = no_ranks,
    window: int = 32_768,
) -> Answerer:
    """Returns a worker's answerer, whose model has the usual window."""

    def facts(_: str) -> ModelFacts:
        return ModelFacts(window_tokens=window, count=estimate_tokens)

    return Answerer(database, calls, facts, b"marker", config, kinds=KINDS, ranks=ranks)


def prism_method(
    database: Database,
    script: Script,
    config: Config = CONFIG,
    *,
    window: int = 32_768,
    prices: ModelPrices = PLAIN,
    calls: Gateway | None = None,
) -> StepEngine[Any]:
    """Returns a worker's engine of PRISM memories, whose model has a window of so many tokens."""
    facts = ModelFacts(window_tokens=window, count=estimate_tokens)
    calls = calls or gateway(script, database, lease_seconds=SHORT_LEASE_SECONDS)
    return step_engine(PrismSpec.kind, database, calls, config, facts, prices)


def tree_method(
    database: Database,
    script: Script,
    config: Config = CONFIG,
    *,
    window: int = 32_768,
    calls: Gateway | None = None,
) -> StepEngine[Any]:
    """Returns a worker's engine of trees, whose model has a window of so many tokens."""
    script.reply = script.reply or summary_reply
    facts = ModelFacts(window_tokens=window, count=estimate_tokens)
    calls = calls or gateway(script, database, lease_seconds=SHORT_LEASE_SECONDS)
    return step_engine(TreeSpec.kind, database, calls, config, facts)


def state_method(
    database: Database,
    script: Script,
    config: Config = CONFIG,
    *,
    window: int = 32_768,
    calls: Gateway | None = None,
) -> StepEngine[Any]:
    """Returns a worker's engine of state memories, whose model has a window of so many tokens."""
    script.reply = script.reply or vector_reply
    facts = ModelFacts(window_tokens=window, count=estimate_tokens)
    calls = calls or gateway(script, database, lease_seconds=SHORT_LEASE_SECONDS)
    return step_engine(StateSpec.kind, database, calls, config, facts)


async def make(
    database: Database, texts: list[str], spec: MemorySpec = SPEC, **changes: Any
) -> None:
    """The session `s` with these chunks, and the memory `m` with `changes` of the spec."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
    if texts:
        await append_texts(database, "s", texts)
    await add_memory(database, MEMORY, "m", replace(spec, **changes), head=len(texts))


async def add_memory(
    database: Database, identity: UUID, name: str, spec: MemorySpec, *, head: int
) -> None:
    """A memory of the session `s`."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        made = await memories.create(
            tx,
            session_key=KEY,
            memory_id=identity,
            name=name,
            spec=spec,
            head=head,
            value="{}" if isinstance(spec, PrismSpec) else None,
            digest=b"",
        )
        assert made
        if isinstance(spec, StateSpec):
            await vectors.add_first(tx, KEY, identity, first_state(spec).current)


async def read(database: Database) -> StoredMemory:
    """Returns the memory's row."""
    async with database.transaction(DEFAULT_TENANT) as tx:
        stored = await memories.get(tx, KEY, MEMORY)
    assert stored is not None
    return stored
