"""Measures what a real inference engine computes for a memory, in place and as amendments.

The same stream is kept by two memories, through the whole service: the flows, the
gateway, the renderers, litellm, and llama.cpp's server with a small model. What the
memory learns is scripted, since such a model writes nothing that could be kept: each
chunk changes one entry of twelve. So the prompts are those of a real memory, and the
engine really computes each of them, for one token of a reply. Each memory starts with an
engine that has nothing in its cache.

`value` is the tokens that the engine computed for the amendments divided by those for
the memory in deployment, by the engine's own count. Besides: on how many calls what was
predicted to be cached was what the engine found, to within a block of 16 tokens.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from pydantic import SecretStr

from service.domain.prism.spec import Encoding, PrismSpec
from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.values.json_values import Json, canonical
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.llm.providers.facts import ModelFacts
from service.llm.providers.plans import CallPlan
from service.llm.providers.prices import Prices
from service.llm.providers.transport import Completion, LitellmTransport
from service.settings.config import Config
from service.usecases.memories.step_engine import StepEngine
from storage.calls.prefix_index import RedisPrefixIndex
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import memories
from storage.tables import call
from tests.integration.support.writing import append_texts
from tests.support.engine import KEY, Engine, engine, installed
from tests.support.gateways import gateway
from tests.support.harness import Servers
from tests.support.step_engines import step_engine

SCHEMA = "class Harbour:\n    ships: dict[str, str]\n"
TASK = "Keep what is said about each ship."
FACTS = ModelFacts(window_tokens=4096, count=estimate_tokens)
SHIPS = (
    "Aurora",
    "Bergljot",
    "Castor",
    "Dorothea",
    "Elida",
    "Freya",
    "Gudrun",
    "Hansa",
    "Iduna",
    "Jupiter",
    "Karin",
    "Louise",
)
#: From one ship to the next that is spoken of; shares no factor with their number.
STRIDE = 5
CARGOES = ("timber from Riga", "salt and two horses", "forty casks of oil", "bricks", "nothing")
#: A step takes about a second on two idle cores, each memory the same number of them.
SECONDS_A_STEP = 1.0
MIN_STEPS, MAX_STEPS = 6, 16
#: Tokens; how far off a prediction may be: vLLM's block.
BLOCK_TOKENS = 16


def chunk_text(step: int) -> str:
    """Returns what the log says on a day; the step from 0."""
    ship, cargo = _spoken_of(step)
    return f"On day {step} the {ship} lay at the east quay and unloaded {cargo}."


def reply_text(step: int) -> str:
    """Returns what the memory learns from it."""
    ship, cargo = _spoken_of(step)
    said = f"seen on day {step} at the east quay, unloading {cargo}"
    return f'[OBJECTS FOR UPDATE]\n{{"$.\'ships\'.\'{ship}\'": {{"update": "{said}"}}}}'


def _spoken_of(step: int) -> tuple[str, str]:
    return SHIPS[step * STRIDE % len(SHIPS)], CARGOES[step % len(CARGOES)]


def _before_the_first_day() -> str:
    said: dict[str, Json] = {
        ship: f"built for the coast, number {number} in the register"
        for number, ship in enumerate(SHIPS)
    }
    return canonical({"ships": said})


@dataclass
class Scripted:
    """Asks the engine for one token, and says what the script says."""

    transport: LitellmTransport
    done: list[Completion] = field(default_factory=list)

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        """Returns the engine's counts with the script's text, which is a whole reply."""
        one = await self.transport.complete(replace(ask, max_output_tokens=1), model, plan)
        one = replace(one, text=reply_text(len(self.done)), end=End.COMPLETE)
        self.done.append(one)
        return one


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What one memory took; tokens for each call, in order."""

    #: Tokens of the prompts.
    prompts: list[int]
    predicted: list[int]
    reported: list[int]
    #: Tokens of all calls together, by the engine's own count.
    evaluated: int

    @property
    def share_within_a_block(self) -> float:
        """Returns the share of calls whose prediction was within a block of what was found."""
        pairs = zip(self.predicted, self.reported, strict=True)
        return sum(abs(a - b) <= BLOCK_TOKENS for a, b in pairs) / len(self.reported)


def run(seconds: float) -> dict[str, Any]:
    """Measures; see the module. Needs the engine (`make setup-local`)."""
    if not installed():
        return {"value": None, "skipped": "the engine is not installed; `make setup-local`"}
    steps = max(MIN_STEPS, min(MAX_STEPS, int(seconds / SECONDS_A_STEP / len(Encoding))))
    found: dict[Encoding, Measured] = {}
    with Servers.started() as servers:
        for encoding in Encoding:
            with engine() as server:
                found[encoding] = asyncio.run(measure(servers, server, encoding, steps))
    amendments, in_place = found[Encoding.AMENDMENTS], found[Encoding.IN_PLACE]
    return {
        "value": round(amendments.evaluated / in_place.evaluated, 3),
        "goal": "< 1",
        "steps": steps,
        "evaluated_amendments": amendments.evaluated,
        "evaluated_in_place": in_place.evaluated,
        "prompts_amendments": sum(amendments.prompts),
        "prompts_in_place": sum(in_place.prompts),
        "within_a_block": amendments.share_within_a_block,
        "within_a_block_goal": ">= 0.99",
        "within_a_block_in_place": in_place.share_within_a_block,
        "predicted": amendments.predicted,
        "reported": amendments.reported,
        "predicted_in_place": in_place.predicted,
        "reported_in_place": in_place.reported,
    }


async def measure(servers: Servers, server: Engine, encoding: Encoding, steps: int) -> Measured:
    """Returns a memory of so many steps, with the engine's cache as it is."""
    config = Config(
        model_base_url=f"{server.url}/v1", model_api_key=SecretStr(KEY), drain_seconds=3600
    )
    # Another name is another engine to the index, so it expects nothing in the cache yet.
    model = f"openai/smollm2-{uuid4().hex}"
    async with _prism_method(servers, config, model) as (database, prism_method):
        item = await _prepare(database, encoding, steps, model)
        before = server.evaluated_tokens()
        await prism_method.drain(item)
        return await _measured(database, item.item_id, server.evaluated_tokens() - before)


@asynccontextmanager
async def _prism_method(
    servers: Servers, config: Config, model: str
) -> AsyncIterator[tuple[Database, StepEngine[Any]]]:
    database = Database.connect(servers.new_database(), pool_size=4, name="bench")
    index = RedisPrefixIndex(servers.valkey.url)
    scripted = Scripted(LitellmTransport(config))
    calls = gateway(scripted, database, index=index, lease_seconds=60.0, config=config)
    try:
        prices = Prices(config).of(model)
        yield database, step_engine(PrismSpec.kind, database, calls, config, FACTS, prices)
    finally:
        await index.close()
        await database.close()


async def _prepare(database: Database, encoding: Encoding, steps: int, model: str) -> WorkItem:
    key = session_key(DEFAULT_TENANT, encoding)
    identity = memory_id(key, "harbour")
    spec = PrismSpec(
        schema_source=SCHEMA, task=TASK, encoding=encoding, chunk_tokens=1, model=model
    )
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, key, encoding)
    await append_texts(database, encoding, [chunk_text(step) for step in range(steps)])
    async with database.transaction(DEFAULT_TENANT) as tx:
        await memories.create(
            tx,
            session_key=key,
            memory_id=identity,
            name="harbour",
            spec=spec,
            head=steps,
            value=_before_the_first_day(),
            digest=b"",
        )
    return WorkItem(
        kind=WorkKind.MEMORY, tenant_id=DEFAULT_TENANT, session_key=key, item_id=identity
    )


async def _measured(database: Database, identity: UUID, evaluated: int) -> Measured:
    wanted = sa.select(
        call.c.input_tokens, call.c.predicted_cached_tokens, call.c.reported_cached_tokens
    ).where(call.c.memory_id == identity)
    async with database.transaction(DEFAULT_TENANT) as tx:
        rows = await tx.fetch(wanted.order_by(call.c.created_at))
    return Measured(
        prompts=[row.input_tokens for row in rows],
        predicted=[row.predicted_cached_tokens for row in rows],
        reported=[row.reported_cached_tokens for row in rows],
        evaluated=evaluated,
    )
