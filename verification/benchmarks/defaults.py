"""Measures what a conversation costs by the defaults of `linger` and `memory_tokens`.

`value` is the dollars for 1,000 turns of 680, at the price of gpt-4.1-mini, with the defaults,
divided by that without a linger and with half of the window as the budget. One message is
appended at a time. The worker's code, PostgreSQL, the tokenizer, the prices and the rules of the
provider's cache are real; the model is a script that notes one fact for each message of the
user, and that keeps the newest facts when it is asked to consolidate.

These hours of talk pass without waiting: between two events, all times stored in the database
are moved back by as much as passes, so that comparisons with its clock have the same results.
Calls take their time in the same way, and messages arrive meanwhile.
"""

import argparse
import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any
from uuid import UUID

import psycopg

from service.domain.log.appending import Submission
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.prism.memory import PrismMemory
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.spec import MEMORY_TOKENS, SERVICE_LINGER_MS, PrismSpec
from service.domain.prompting.flows import ModelRequest, Purpose
from service.domain.spend.prices import ModelPrices, cost_micro_usd
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.domain.values.work_items import WorkItem, WorkKind
from service.llm.offline.prompt import Prompt
from service.llm.providers.facts import SLICE_CHARACTERS as SLICE
from service.llm.providers.facts import Facts, ModelFacts
from service.llm.providers.plans import CallPlan
from service.llm.providers.prices import Prices
from service.llm.providers.transport import Completion
from service.settings.config import Config, Limits
from service.usecases.log.append import Appender
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.step_engine import StepEngine
from storage.engine.database import Database
from storage.log import sessions
from storage.memories import memories
from tests import ROOT
from tests.integration.support.writing import drop_wake_ups, submitted
from tests.support.completions import completion
from tests.support.gateways import gateway
from tests.support.harness import Servers, with_database
from tests.support.step_engines import step_engine

#: Conversations lie beside the repository, not in it.
DATA = ROOT.parent / "shared" / "data"
SETS = ("personamem_32k", "beam_100k")
MODEL = "openai/gpt-4.1-mini"
SCHEMA = '''class Person:
    """What is known of the user."""
    facts: dict[str, str]
'''
TASK = "Keep what the user says of themselves, so that later answers can use it."
#: Where figures are taken.
TURNS = (200, 680)
#: The last turns of these, whose prompts say what one costs by then.
LAST = 100
LINGERS = (0.0, 2.0, 5.0, 10.0, 30.0)
#: 0: half of the model's window.
BUDGETS = (2000, 4000, 6000, 8000, 0)
#: Words of a fact; with one for each message of the user a memory grows by about 13 tokens a
#: turn, as was measured with a real model.
FACT_WORDS = 20
#: Share of the budget that a consolidation leaves.
KEPT = 0.6
#: A model's call: until its first token, and tokens a second.
FIRST_SECONDS, TOKENS_PER_SECOND = 0.7, 80.0
#: Prompts that the provider remembers; the newest.
REMEMBERED = 16

# How people write to an assistant: it begins after a second and a half and writes 45 words a
# second; they read 4 words a second and type one, for half a minute each at the most.
REPLY_SECONDS, REPLY_WORDS = 1.5, 45.0
READ_WORDS, TYPED_WORDS, MOST_SECONDS = 4.0, 1.0, 30.0
# How they speak: without a pause.
SPOKEN_WORDS, MOST_SPOKEN_SECONDS = 2.5, 6.0
#: Where programs talk, or a log is imported.
MACHINE_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """A message, and when it is appended, in seconds."""

    at: float
    chunk: Chunk


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A call of the model."""

    #: The last position that it, or the one before it, read.
    position: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    consolidates: bool


@dataclass
class World:
    """A conversation in progress, and a model that is asked meanwhile."""

    turns: Sequence[Turn]
    connection: "psycopg.AsyncConnection[Any]"
    appender: Appender
    item: WorkItem
    facts: ModelFacts
    prices: ModelPrices
    now: float = 0.0
    said: int = 0
    calls: list[Call] = field(default_factory=list)
    #: Seconds from each message to the end of the call that read it.
    waits: list[float] = field(default_factory=list)
    #: Facts and tokens of the memory when all is read.
    left: tuple[int, int] = 0, 0
    prompts: list[tuple[float, str]] = field(default_factory=list)

    async def go_on(self, until: float) -> None:
        """Lets the time pass; what is said meanwhile is appended."""
        while self.said < len(self.turns) and self.turns[self.said].at <= until:
            turn = self.turns[self.said]
            await self._pass(turn.at - self.now)
            self.now = max(self.now, turn.at)
            self.said += 1
            await self.appender.submit(
                DEFAULT_TENANT,
                Submission(
                    session="s",
                    session_key=self.item.session_key,
                    producer_id="p",
                    epoch=0,
                    expected_head=None,
                    chunks=(submitted(self.said, turn.chunk),),
                ),
            )
        await self._pass(until - self.now)
        self.now = max(self.now, until)

    async def _pass(self, seconds: float) -> None:
        if seconds <= 0:
            return
        await self.connection.execute(
            _OLDER, {"s": seconds, "k": self.item.session_key, "m": self.item.item_id}
        )

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        """Returns a reply, when its time has passed."""
        prompt, text = Prompt(ask), ask.text
        read = list(self._read(prompt.texts("TEXT")))
        if ask.purpose is Purpose.REVISE:
            reply = _noted(read)
            position = read[-1][0]
        else:
            reply = _shortened(prompt, self.facts.count)
            position = self.calls[-1].position if self.calls else 0
        output = self.facts.count(reply)
        call = Call(
            position=position,
            input_tokens=self.facts.count(text),
            cached_tokens=self._cached(text),
            output_tokens=output,
            consolidates=ask.purpose is Purpose.CONSOLIDATE,
        )
        self.calls.append(call)
        await self.go_on(self.now + FIRST_SECONDS + output / TOKENS_PER_SECOND)
        self.waits += [self.now - self.turns[at - 1].at for at, _ in read]
        return completion(
            reply,
            model,
            input_tokens=call.input_tokens,
            output_tokens=output,
            cached_tokens=call.cached_tokens,
        )

    def _read(self, texts: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Yields the chunks of a step, or a piece of one, with their positions."""
        at = max(self.calls[-1].position, 1) if self.calls else 1
        for text in texts:
            while text not in self.turns[at - 1].chunk.as_text():
                at += 1
            yield at, text

    def _cached(self, text: str) -> int:
        """Returns what the provider has of the prompt, by its documents."""
        known = [
            _common(text, before)
            for at, before in self.prompts
            if self.now - at <= self.prices.ttl_seconds
        ]
        self.prompts = [*self.prompts[1 - REMEMBERED :], (self.now, text)]
        tokens = self.facts.count(max(known, key=len, default=""))
        if tokens < self.prices.min_tokens:
            return 0
        return tokens - tokens % self.prices.granularity_tokens


def _common(one: str, other: str) -> str:
    """Returns what both begin with."""
    same, least = 0, min(len(one), len(other))
    while same < least:
        half = (same + least + 1) // 2
        if one.startswith(other[:half]):
            same = half
        else:
            least = half - 1
    return one[:same]


#: Everything that a step compares with the database's clock.
_OLDER = """
WITH aged AS (
    UPDATE memory SET ready_at = ready_at - make_interval(secs => %(s)s)
    WHERE session_key = %(k)s AND memory_id = %(m)s
    RETURNING session_key, memory_id, revision, applied_position
), unread AS (
    UPDATE chunk SET created_at = created_at - make_interval(secs => %(s)s) FROM aged
    WHERE chunk.session_key = aged.session_key AND chunk.position > aged.applied_position
)
UPDATE revision SET created_at = created_at - make_interval(secs => %(s)s) FROM aged
WHERE revision.session_key = aged.session_key AND revision.memory_id = aged.memory_id
    AND revision.revision = aged.revision
"""


def _noted(read: Sequence[tuple[int, str]]) -> str:
    notes = []
    for position, text in read:
        speaker, _, said = text.partition(":")
        if "user" in speaker.lower():
            note = json.dumps(" ".join(said.split()[:FACT_WORDS]))
            notes.append({"op": "add", "path": f"$.'facts'.'{position}'", "value": note})
    return json.dumps({"changes": notes})


def _shortened(prompt: Prompt, count: Callable[[str], int]) -> str:
    """Keeps the newest facts that have room; a model would merge, to the same size."""
    facts = json.loads(prompt.text("MEMORY"))["facts"]
    room, gone = KEPT * int(re.findall(r"\d+", prompt.plain("SIZE"))[-1]), []
    for key, fact in sorted(facts.items(), key=lambda one: -int(one[0])):
        room -= count(json.dumps({key: fact}))
        if room < 0:
            gone.append({"op": "remove", "path": f"$.'facts'.'{key}'", "value": ""})
    return json.dumps({"changes": gone})


def conversation(name: str, turns: int) -> Sequence[Chunk]:
    """Returns the first messages of a set of real conversations, or of a made-up one."""
    path = DATA / name / "dev.jsonl"
    if not path.is_file():
        print(f"No conversations: there is no file {path}. These are made up.")
        return [_made_up(number) for number in range(turns)]
    found: list[Chunk] = []
    with path.open() as lines:
        for line in lines:
            for turn in json.loads(line)["turns"]:
                if turn["speaker"] in ("user", "assistant"):
                    found.append(_message(turn["speaker"], turn["text"]))
            if len(found) >= turns:
                break
    return found[:turns]


def _made_up(number: int) -> Chunk:
    words = [f"word{(number * 7919 + n * 104_729) % 5000}" for n in range(100 + number % 60)]
    return _message("assistant" if number % 2 else "user", " ".join(words))


def _message(role: str, text: str) -> Chunk:
    return Chunk(kind=ChunkKind.MESSAGE, role=role, text=text)


def typed(chunks: Sequence[Chunk]) -> Iterator[Turn]:
    """Yields turns as people and an assistant write them."""
    at = 0.0
    yield Turn(at=at, chunk=chunks[0])
    for before, chunk in pairwise(chunks):
        if chunk.role == "assistant":
            at += REPLY_SECONDS + _words(chunk) / REPLY_WORDS
        else:
            read = min(_words(before) / READ_WORDS, MOST_SECONDS)
            at += read + min(_words(chunk) / TYPED_WORDS, MOST_SECONDS)
        yield Turn(at=at, chunk=chunk)


def spoken(chunks: Sequence[Chunk]) -> Iterator[Turn]:
    """Yields turns as people and an assistant speak, interrupting each other."""
    at = 0.0
    for chunk in chunks:
        at += min(_words(chunk) / SPOKEN_WORDS, MOST_SPOKEN_SECONDS)
        yield Turn(at=at, chunk=chunk)


def by_machine(chunks: Sequence[Chunk]) -> Iterator[Turn]:
    """Yields turns as fast as a program appends them."""
    for number, chunk in enumerate(chunks):
        yield Turn(at=number * MACHINE_SECONDS, chunk=chunk)


def _words(chunk: Chunk) -> int:
    return len(chunk.text.split())


PACES: Mapping[str, Callable[[Sequence[Chunk]], Iterator[Turn]]] = {
    "typed": typed,
    "spoken": spoken,
    "by machine": by_machine,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for conversations."""
    parser.add_argument("--chats", choices=SETS, default=SETS[0], help="real conversations")
    parser.add_argument("--turns", type=int, default=TURNS[-1], help="how many (default 680)")


def run(_: float, *, chats: str, turns: int) -> dict[str, Any]:
    """Measures; see the module. It takes some ten minutes."""
    with Servers.started() as servers:
        return asyncio.run(_measure(servers, conversation(chats, turns), chats))


async def _measure(servers: Servers, chunks: Sequence[Chunk], name: str) -> dict[str, Any]:
    default = Config().message_linger_seconds
    wanted = [("typed", 0.0, 0), ("typed", default, MEMORY_TOKENS)]
    wanted += [(pace, linger, MEMORY_TOKENS) for pace in PACES for linger in LINGERS]
    wanted += [("typed", 0.0, BUDGETS[0]), *(("typed", default, budget) for budget in BUDGETS)]
    facts, prices = _remembering(Facts(Config()).of(MODEL)), Prices(Config()).of(MODEL)
    url = servers.new_database()
    rows: dict[tuple[str, float, int], dict[str, Any]] = {}
    for number, (pace, linger, budget) in enumerate(dict.fromkeys(wanted)):
        world = await _talk(
            (url, with_database(servers.postgres.superuser_url, url.rpartition("/")[2])),
            f"{number}",
            list(PACES[pace](chunks)),
            (linger, budget),
            (facts, prices),
        )
        row = {"pace": pace, "linger_seconds": linger, "memory_tokens": budget, **_figures(world)}
        rows[pace, linger, budget] = row
        print(json.dumps(row), flush=True)
    before, after = rows["typed", 0.0, 0], rows["typed", default, MEMORY_TOKENS]
    last = f"{len(chunks)}"
    value = after[last]["usd_per_1000_turns"] / before[last]["usd_per_1000_turns"]
    return {
        "value": round(value, 3),
        "goal": "<= 0.6",
        "chats": name,
        "model": MODEL,
        "linger_seconds": default,
        "memory_tokens": MEMORY_TOKENS,
        "rows": list(rows.values()),
    }


def _remembering(facts: ModelFacts) -> ModelFacts:
    """Returns the same counts: prompts that begin alike are counted once, slice by slice."""
    count = lru_cache(maxsize=200_000)(facts.count)

    def counted(text: str) -> int:
        return sum(count(text[at : at + SLICE]) for at in range(0, len(text), SLICE))

    return replace(facts, count=counted)


def _figures(world: World) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for turns in sorted({min(turns, len(world.turns)) for turns in TURNS}):
        calls = [one for one in world.calls if one.position <= turns]
        last = [one for one in calls if one.position > turns - LAST]
        usd = sum(_micro_usd(one, world.prices) for one in calls) / 1e6
        figures[f"{turns}"] = {
            "calls_per_100_turns": round(100 * len(calls) / turns, 1),
            "consolidations": sum(one.consolidates for one in calls),
            "prompt_tokens_per_turn": round(sum(one.input_tokens for one in calls) / turns),
            "last_prompt_tokens_per_turn": round(sum(one.input_tokens for one in last) / LAST),
            "last_prompt_tokens": round(sum(one.input_tokens for one in last) / len(last)),
            "cached_share": round(
                sum(one.cached_tokens for one in calls) / sum(one.input_tokens for one in calls), 2
            ),
            "usd_per_1000_turns": round(1000 * usd / turns, 3),
        }
    waits = sorted(world.waits)
    return figures | {
        "facts_left": world.left[0],
        "tokens_left": world.left[1],
        "seconds_to_applied": [round(waits[len(waits) // 2], 1), round(waits[-1], 1)],
    }


def _micro_usd(call: Call, prices: ModelPrices) -> int:
    found = cost_micro_usd(
        prices,
        input_tokens=call.input_tokens,
        cached=call.cached_tokens,
        written=0,
        output_tokens=call.output_tokens,
    )
    assert found is not None, "litellm's list has the price"
    return found


async def _talk(
    urls: tuple[str, str],
    name: str,
    turns: Sequence[Turn],
    settings: tuple[float, int],
    known: tuple[ModelFacts, ModelPrices],
) -> World:
    """Returns one conversation from its first message until all of it is read."""
    (linger, budget), (facts, prices) = settings, known
    database = Database.connect(urls[0], pool_size=4, name="bench")
    appender = Appender(database, WakeUps(drop_wake_ups), b"token-key", Limits())
    appending = asyncio.create_task(appender.run())
    connection = await psycopg.AsyncConnection.connect(urls[1], autocommit=True)
    try:
        item = await _prepare(database, name, budget)
        world = World(
            turns=turns,
            connection=connection,
            appender=appender,
            item=item,
            facts=facts,
            prices=prices,
        )
        config = Config(message_linger_seconds=linger, small_talk_tokens=0, drain_seconds=3600)
        calls = gateway(world, database, config=config)
        engine = step_engine(PrismSpec.kind, database, calls, config, facts, prices)
        await _drive(world, engine)
        kept = await connection.execute(
            "SELECT value FROM prism_value WHERE session_key = %s", (item.session_key,)
        )
        ((value,),) = await kept.fetchall()
        world.left = len(json.loads(value)["facts"]), facts.count(value)
        return world
    finally:
        await connection.close()
        appending.cancel()
        await asyncio.gather(appending, return_exceptions=True)
        await database.close()


async def _drive(world: World, engine: StepEngine[Any]) -> None:
    """Appends wake the worker, and it comes back when it said so: as in the service."""
    wakes: float | None = None
    while wakes is not None or world.said < len(world.turns):
        if wakes is None:
            await world.go_on(world.turns[world.said].at)
        else:
            await world.go_on(wakes)
        seconds = await engine.drain(world.item)
        wakes = None if seconds is None else world.now + seconds


async def _prepare(database: Database, name: str, budget: int) -> WorkItem:
    key = session_key(DEFAULT_TENANT, name)
    identity: UUID = memory_id(key, "m")
    spec = PrismSpec(
        schema_source=SCHEMA,
        task=TASK,
        model=MODEL,
        memory_tokens=budget,
        linger_ms=SERVICE_LINGER_MS,
    )
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, key, name)
        await memories.create(
            tx,
            session_key=key,
            memory_id=identity,
            name="m",
            spec=spec,
            head=0,
            value=PrismMemory.create(parse_source(SCHEMA)).value_json,
            digest=b"",
        )
    return WorkItem(
        kind=WorkKind.MEMORY, tenant_id=DEFAULT_TENANT, session_key=key, item_id=identity
    )
