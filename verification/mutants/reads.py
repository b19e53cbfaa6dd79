"""Reads that must not be stale, and answers that must not change once sent."""

import asyncio
from typing import Any
from unittest import mock
from uuid import uuid4

from service.domain.log.read_tokens import ReadToken
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem, WorkKind
from service.usecases.answers.stored_answers import cancel
from service.usecases.memories.consistency import Consistency
from service.usecases.memories.memories import Memories
from storage.answers import answers
from verification.mutants.calls import SECOND_REPLIES
from verification.mutants.changes import Patch, Sql
from verification.mutants.mutant import Chain, Layer
from verification.mutants.servers import server
from verification.mutants.world import PRISM, TOKEN_KEY, Gate, Worker, World


async def read_too_soon(world: World) -> None:
    """A client reads with the token of an ack before any worker has read the chunk."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        token = await api.append("p", 1, 2)
        await api.read("m", token, 2)


async def read_with_a_token_of_before(world: World) -> None:
    """The session has a new incarnation, and a client has a token of the old one."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        token = await api.append("p", 1)
        await world.settle()
        await world.run_sql("UPDATE session SET incarnation = 2 WHERE session_key = %s", world.key)
        if await api.read("m", token, 1):
            world.wrong.append("a token of an earlier log is accepted for this one")


async def read_with_a_token_of_a_lost_log(world: World) -> None:
    """A backup is restored that ends before a chunk, and a client has that chunk's token."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        await api.append("p", 1)
        await world.settle()
        lost = ReadToken(session_key=world.key, incarnation=1, position=2).sign(TOKEN_KEY)
        await api.read("m", lost, 2)


async def question(world: World) -> WorkItem:
    """Asks the memory of one chunk a question."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        await api.append("p", 1)
    await world.settle()
    item = WorkItem(
        kind=WorkKind.ANSWER,
        tenant_id=DEFAULT_TENANT,
        session_key=world.key,
        item_id=uuid4(),
    )
    async with world.database("asker").transaction(DEFAULT_TENANT) as tx:
        await answers.create(
            tx,
            session_key=world.key,
            answer_id=item.item_id,
            memory_id=world.item("m").item_id,
            query="What of it?",
            revision=1,
            applied_position=1,
        )
    return item


_ANSWER = "SELECT status, text FROM answer WHERE session_key = %s"


async def _finished_late(world: World, meanwhile: Any) -> None:
    """A worker is about to store an answer when something happens to it."""
    item = await question(world)
    hold = Gate()
    complete = answers.complete

    async def wait_first(*arguments: Any, **named: Any) -> bool:
        if not hold.reached.is_set():
            await hold.pass_()
        return await complete(*arguments, **named)

    with mock.patch.object(answers, "complete", wait_first):
        slow = asyncio.create_task(Worker(world, "slow").answerer.make(item))
        await hold.wait()
        await meanwhile(item)
        told = await world.run_sql(_ANSWER, world.key)
        hold.open()
        await slow
    world.expect("an answer differs from the one that was sent", _ANSWER, *told)


async def answered_twice(world: World) -> None:
    """Two workers make one answer, and the second is ready after the first was sent."""
    world.may_pay_again = True
    await _finished_late(world, Worker(world, "quick").answerer.make)


async def cancelled_meanwhile(world: World) -> None:
    """A client cancels an answer that is about to be stored."""

    async def call_off(item: WorkItem) -> None:
        await cancel(world.database("canceller"), DEFAULT_TENANT, world.session, item.item_id)

    await _finished_late(world, call_off)


def _waits_never(_: Any) -> Any:
    async def at_once(*_: object) -> None:
        return None

    return at_once


def _takes_any(wanted: Any) -> Any:
    def wrong(
        self: Consistency, token_key: bytes, session_key: object, *, head: int, incarnation: int
    ) -> Any:
        if self.at_least is not None:
            incarnation = ReadToken.verify(token_key, self.at_least).incarnation
        return wanted(self, token_key, session_key, head=head, incarnation=incarnation)

    return wrong


def _takes_any_position(wanted: Any) -> Any:
    def wrong(
        self: Consistency, token_key: bytes, session_key: object, *, head: int, incarnation: int
    ) -> Any:
        if self.at_least is not None:
            head = max(head, ReadToken.verify(token_key, self.at_least).position)
        return wanted(self, token_key, session_key, head=head, incarnation=incarnation)

    return wrong


_WAIT = Layer(
    name="wait",
    what="a read does not wait",
    change=(Patch(where=Memories, name="_wait", to=_waits_never),),
    counter="NOT_APPLIED_IN_TIME",
)
_SETTLED = Layer(
    name="settled",
    what="an answer is stored after it has ended",
    change=(
        Sql(
            of=r"^UPDATE answer SET status=",
            cut=r" AND answer\.status IN \((%\(\w+\)s(::\w+)?(, )?)+\)",
        ),
    ),
    counter="answer.settled",
)

READS = (
    Chain(name="read", scenario=read_too_soon, layers=(_WAIT,)),
    Chain(
        name="old token",
        scenario=read_with_a_token_of_before,
        layers=(
            Layer(
                name="incarnation",
                what="a token of any incarnation is accepted",
                change=(Patch(where=Consistency, name="wanted_position", to=_takes_any),),
                counter="TOKEN_INVALID",
            ),
        ),
    ),
    Chain(
        name="lost token",
        scenario=read_with_a_token_of_a_lost_log,
        layers=(
            Layer(
                name="head",
                what="a token for a position that the log does not have is accepted",
                change=(Patch(where=Consistency, name="wanted_position", to=_takes_any_position),),
                counter="TOKEN_INVALID",
            ),
            _WAIT,
        ),
    ),
    Chain(
        name="two answers",
        scenario=answered_twice,
        layers=(
            _SETTLED,
            Layer(
                name="ledger",
                what="a paid reply is not found again",
                change=(
                    Sql(
                        of=r"^\s*SELECT w\.session_key, w\.key, reply, model",
                        cut=r"reply IS NOT NULL OFFSET 0",
                        put="reply IS NOT NULL AND false OFFSET 0",
                    ),
                ),
                counter="replays",
            ),
            Layer(
                name="call_once",
                what="a call may have two replies",
                change=SECOND_REPLIES,
                counter="call.reply",
            ),
        ),
    ),
    Chain(name="cancelled", scenario=cancelled_meanwhile, layers=(_SETTLED,)),
)
