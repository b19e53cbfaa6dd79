"""Appends that are repeated, concurrent, late, or changed."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from service.domain.log import appending
from service.domain.log.appending import AppendPlan, ProducerState, SessionState, Submission
from service.usecases.log import append_group, idempotency, submissions
from service.usecases.log.append import Appender
from storage.engine.database import Transaction
from storage.engine.errors import Unreachable
from storage.log import chunks, requests
from verification.mutants.changes import Body, Drop, Patch, Sql
from verification.mutants.mutant import Chain, Layer
from verification.mutants.servers import server
from verification.mutants.world import PRISM, Gate, World


async def sent_again(world: World) -> None:
    """The outcome of a batch is unknown: it is sent again, to another server."""
    await world.begin(m=PRISM)
    async with server(world, "a") as one, server(world, "b") as other:
        await one.append("p", 1, 3)
        await other.append("p", 1, 3)


async def sent_again_on_a_guess(world: World) -> None:
    """A server that last saw sequence 2 gets sequence 3, which another one has stored."""
    await world.begin(m=PRISM)
    async with server(world, "a") as one, server(world, "b") as other:
        await one.append("p", 1)
        await one.append("p", 2)
        await other.append("p", 3)
        await one.append("p", 3)


async def sent_at_once(world: World) -> None:
    """The same chunk goes to two servers at once; one has its session's state already."""
    await world.begin(m=PRISM)
    hold = Gate()
    write = chunks.write

    async def wait_and_write(*arguments: Any) -> Any:
        if not hold.reached.is_set():
            await hold.pass_()
        return await write(*arguments)

    async with server(world, "a") as one, server(world, "b") as other:
        with mock.patch.object(chunks, "write", wait_and_write):
            first = asyncio.create_task(one.append("p", 1))
            await hold.wait()
            second = asyncio.create_task(other.append("p", 1))
            await world.until_blocked(second, counted="waited: session")
            hold.open()
            await asyncio.gather(first, second)


async def asked_again(world: World) -> None:
    """The outcome of a request without a producer is unknown: another server gets it again."""
    await world.begin()
    async with server(world, "a") as one, server(world, "b") as other:
        await one.request("r", 1)
        await other.request("r", 1)


async def asked_again_on_a_guess(world: World) -> None:
    """A request comes again to a server that has written another one since."""
    await world.begin()
    async with server(world, "a") as api:
        await api.request("r", 1)
        await api.request("s", 2)
        await api.request("r", 1)


async def edited_again(world: World) -> None:
    """The reply to an edit is lost: another server gets its request again."""
    await world.begin(m=PRISM)
    world.expect(
        "an edit took effect twice",
        "SELECT count(*) FROM revision WHERE session_key = %s AND kind = 'edit'",
        (1,),
    )
    async with server(world, "a") as one, server(world, "b") as other:
        await one.edit_by_request("m", "x", "r")
        await other.edit_by_request("m", "y", "r")


async def sent_by_a_zombie(world: World) -> None:
    """A producer continues after another one took it over by a higher epoch."""
    await world.begin(m=PRISM)
    async with server(world, "a") as one, server(world, "b") as other:
        await one.open("p", 1)
        await one.append("p", 1, epoch=1)
        await other.open("p", 2)
        if await one.append("p", 2, epoch=1) is not None:
            world.wrong.append("an append with a fenced epoch is acked")


async def sent_with_a_gap(world: World) -> None:
    """A producer leaves a sequence out."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        await api.append("p", 1)
        if await api.append("p", 2, 3, skipping=1) is not None:
            world.wrong.append("a sequence is acked without the one before it")


async def sent_as_another(world: World) -> None:
    """A sequence comes again and says something else."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        await api.append("p", 1, 2)
        if await api.append("p", 2, text="something else") is not None:
            world.wrong.append("a text is acked that is not stored")


async def sent_to_another_head(world: World) -> None:
    """A producer expects the head that it knew, and another client has written since."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        await api.append("p", 1)
        await api.append("q", 1)
        if await api.append("p", 2, expected_head=1) is not None:
            world.wrong.append("an append is acked after another head than it expected")


async def cut_before_the_commit(world: World) -> None:
    """The connection breaks when everything is written, and before it is committed."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        await api.append("p", 1)
        await api.append("q", 1)


def _places_anew(plan: Any) -> Any:
    def wrong(
        submission: Submission,
        session: SessionState | None,
        producer: ProducerState | None,
        *,
        backlog_chunks: int,
    ) -> AppendPlan:
        if producer is not None:
            first = submission.chunks[0].sequence
            producer = replace(producer, last_sequence=min(producer.last_sequence, first - 1))
        made: AppendPlan = plan(submission, session, producer, backlog_chunks=backlog_chunks)
        return made

    return wrong


def allows(_: Any) -> Any:
    """Returns a check that refuses nothing."""

    def check(*_: object) -> None:
        return None

    return check


def _forgets(_: Any) -> Any:
    def wrong(self: append_group.AppendGroup, entry: submissions.QueuedSubmission) -> bool:
        return False

    return wrong


def _finds_nothing(_: Any) -> Any:
    async def wrong(*_: object) -> None:
        return None

    return wrong


def _takes_for_new(store: Any) -> Any:
    async def wrong(*arguments: Any) -> bool:
        await store(*arguments)
        return True

    return wrong


def _breaks(commit: Any) -> Any:
    broken: list[object] = []

    async def cut(self: Transaction) -> None:
        if not broken:
            broken.append(self)
            raise Unreachable("the connection is gone")
        await commit(self)

    return cut


def _acks_early(_: Any) -> Any:
    async def wrong(
        self: Appender, tx: Transaction, entries: Sequence[submissions.QueuedSubmission]
    ) -> append_group.AppendGroup:
        locked = await chunks.lock(tx, list(dict.fromkeys(entry.producer for entry in entries)))
        group = append_group.AppendGroup(
            sessions=dict(locked.sessions),
            producers=dict(locked.producers),
            stored=await append_group.read_repeated(tx, entries, locked),
            keyed=self._keyed(tx.tenant_id),
        )
        for entry in entries:
            group.add(entry, self._limits.backlog_chunks)
        if group.has_writes():
            await chunks.write(tx, *group.writes())
        for entry in entries:
            appended = self._result(entry, group)
            if isinstance(appended, submissions.Appended) and not entry.done.done():
                entry.done.set_result(appended)
        await tx.commit()
        return group

    return wrong


_CHUNK_PKEY = Layer(
    name="chunk_pkey",
    what="a position may have two chunks",
    change=(Drop(table="chunk", name="chunk_pkey"),),
    counter="key:chunk_pkey",
)
_CHUNK_ONCE = Layer(
    name="chunk_once",
    what="a producer's sequence may be stored twice",
    change=(Drop(table="chunk", name="chunk_once"),),
    counter="key:chunk_once",
)


_REQUEST_PKEY = Layer(
    name="request_pkey",
    what="a request may be stored twice",
    change=(Drop(table="request", name="request_pkey"),),
    counter="key:request_pkey",
)


def _guess(name: str, what: str, cut: str) -> Layer:
    return Layer(
        name=name,
        what=what,
        change=(Body(function="write_if_unchanged", cut=cut),),
        counter="append.guess",
    )


def _check(name: str, what: str, where: Any, function: str, counter: str) -> tuple[Layer, ...]:
    patch = Patch(where=where, name=function, to=allows)
    return (Layer(name=name, what=what, change=(patch,), counter=counter),)


APPENDS = (
    Chain(
        name="resend",
        scenario=sent_again,
        layers=(
            Layer(
                name="sequence",
                what="a repeated chunk is taken for new",
                change=(Patch(where=append_group, name="plan", to=_places_anew),),
                counter="append.repeat",
            ),
            _CHUNK_ONCE,
        ),
    ),
    Chain(
        name="guess",
        scenario=sent_again_on_a_guess,
        layers=(
            _guess("head", "a write on a guess does not check the head", " AND head = p_head"),
            _guess(
                "sequence",
                "a write on a guess does not check the producer's sequence",
                " AND last_sequence = p_last",
            ),
            _CHUNK_PKEY,
            _CHUNK_ONCE,
        ),
    ),
    Chain(
        name="at once",
        scenario=sent_at_once,
        layers=(
            Layer(
                name="lock",
                what="an append reads its session without locking it",
                change=(Sql(of=r"FROM session WHERE", cut=r"FOR NO KEY UPDATE OF session"),),
                counter="waited: session",
            ),
            _CHUNK_PKEY,
            _CHUNK_ONCE,
        ),
    ),
    Chain(
        name="request",
        scenario=asked_again,
        layers=(
            Layer(
                name="id",
                what="a repeated request is carried out again",
                change=(Patch(where=append_group.AppendGroup, name="_was_done", to=_forgets),),
                counter="append.request",
            ),
            _REQUEST_PKEY,
        ),
    ),
    Chain(
        name="edit by request",
        scenario=edited_again,
        layers=(
            Layer(
                name="id",
                what="a request is not looked up",
                change=(Patch(where=idempotency, name="_response", to=_finds_nothing),),
                counter="request",
            ),
            Layer(
                name="result",
                what="a request whose result is stored is taken for new",
                change=(Patch(where=requests, name="store_response", to=_takes_for_new),),
                counter="refused:Repeated",
            ),
        ),
    ),
    Chain(
        name="request on a guess",
        scenario=asked_again_on_a_guess,
        layers=(
            Layer(
                name="id",
                what="a write on a guess takes a request for new",
                change=(
                    Body(
                        function="write_requests_if_unchanged",
                        cut=r" AND request_id = ANY \(p_requests\)",
                        put=" AND false",
                    ),
                ),
                counter="append.guess",
            ),
            _REQUEST_PKEY,
        ),
    ),
    Chain(
        name="zombie on a guess",
        scenario=sent_by_a_zombie,
        layers=(
            _guess(
                "epoch",
                "a write on a guess does not check the producer's epoch",
                r"\s+AND epoch = p_epoch",
            ),
        ),
    ),
    Chain(
        name="zombie",
        scenario=sent_by_a_zombie,
        layers=_check(
            "epoch", "a lower epoch may append", appending, "check_epoch", "PRODUCER_FENCED"
        ),
    ),
    Chain(
        name="gap",
        scenario=sent_with_a_gap,
        layers=_check(
            "sequence", "a sequence may be left out", appending, "_check_sequence", "SEQUENCE_GAP"
        ),
    ),
    Chain(
        name="other content",
        scenario=sent_as_another,
        layers=_check(
            "digest",
            "a repeated sequence is not compared with the stored one",
            append_group,
            "check_repeated",
            "SEQUENCE_CONTENT_CHANGED",
        ),
    ),
    Chain(
        name="other head",
        scenario=sent_to_another_head,
        layers=_check("head", "any head is accepted", appending, "check_head", "HEAD_MISMATCH"),
    ),
    Chain(
        name="cut",
        scenario=cut_before_the_commit,
        defect=(Patch(where=Transaction, name="commit", to=_breaks),),
        layers=(
            Layer(
                name="ack",
                what="an append is acked before it is committed",
                change=(Patch(where=Appender, name="_write_locked", to=_acks_early),),
                counter="refused:DATABASE_UNAVAILABLE",
            ),
        ),
    ),
)
