"""Replies that a memory cannot use, and steps that are too long for a context."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from service.domain.answers import drafting
from service.domain.prism import asking as prism
from service.domain.prism import revisions
from service.domain.prompting import asking as replies
from service.domain.prompting.asking import THEN, Then
from service.domain.prompting.cutting import ELLIPSIS
from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.tokens import marks_in
from service.domain.state.triggers import SizedStep, _Counting
from service.domain.values.tenancy import DEFAULT_TENANT
from storage.log import chunks
from storage.memories import stalls
from verification.mutants.changes import Patch
from verification.mutants.mutant import Chain, Layer, Scenario
from verification.mutants.reads import question
from verification.mutants.servers import server
from verification.mutants.world import PRISM, STATE, Worker, World

#: The beginning of a reply that changes nothing; the rest is missing.
NOTHING = '{"changes": []}'
PROSE = "There is nothing in it that I would keep."
AGAIN = "asked again"
MARKED = "marked"
#: What is in a prompt that is asked again.
AGAIN_TITLE = "\n[AGAIN]\n"
#: Around a text in a prompt: one before it, one after.
MARKS = 2
#: Tokens that steps without a vector have together, of seven with 4 to 14 each.
PERIOD_TOKENS = 25


def _first(world: World, text: str, end: End) -> Callable[[ModelRequest], tuple[str, End] | None]:
    """Makes this the model's first reply, and counts later requests that say why they repeat it."""
    said = iter([(text, end)])

    def instead(ask: ModelRequest) -> tuple[str, End] | None:
        world.counted[AGAIN] += AGAIN_TITLE in ask.text
        return next(said, None)

    return instead


def _expect_topics(world: World, number: int) -> None:
    world.expect(
        "a chunk is applied, and the memory has nothing of it",
        "SELECT count(*) FROM amendment WHERE session_key = %s",
        (number,),
    )


def useless(text: str, end: End) -> Scenario:
    """Returns a scenario in which a model's first reply to a step is useless."""

    async def scenario(world: World) -> None:
        await world.begin(m=PRISM)
        async with server(world, "a") as api:
            await api.append("p", 1)
        world.model.instead = _first(world, text, end)
        await world.drain(Worker(world, "quick"), "m")
        _expect_topics(world, 1)

    return scenario


async def refused(world: World) -> None:
    """A model refuses a text, and accepts it when the memory is retried."""
    await world.begin(m=PRISM)
    async with server(world, "a") as api:
        await api.append("p", 1)
    world.model.instead = _first(world, NOTHING, End.REFUSAL)
    worker = Worker(world, "quick")
    await world.drain(worker, "m")
    item = world.item("m")
    async with worker.database.transaction(DEFAULT_TENANT) as tx:
        world.counted["stalled"] += await stalls.retry(tx, item.session_key, item.item_id)
    # The retry asks the model anew, as it should.
    world.may_pay_again = True
    _expect_topics(world, 1)


async def without_room(world: World) -> None:
    """A model's reply to two chunks at once is always too long."""
    await world.begin(m=replace(PRISM, chunk_tokens=1000))
    async with server(world, "a") as api:
        await api.append("p", 1, 2)

    def instead(ask: ModelRequest) -> tuple[str, End] | None:
        if marks_in(ask.text) > MARKS:
            return NOTHING, End.LENGTH
        world.counted["halved"] += 1
        return None

    world.model.instead = instead
    await world.drain(Worker(world, "quick"), "m")
    _expect_topics(world, 2)


async def answer_without_room(world: World) -> None:
    """A model's answer to a question is always too long."""
    item = await question(world)

    world.model.instead = lambda _: ("[ANSWER]\nIt is so, but", End.LENGTH)
    await Worker(world, "quick").answerer.make(item)
    query = "SELECT status, text FROM answer WHERE session_key = %s"
    marked = ("complete", f"It is so, but{ELLIPSIS}")
    world.counted[MARKED] += marked in await world.run_sql(query, world.key)
    world.expect("an answer that was cut off looks complete", query, marked)


async def steps_of_many_tokens(world: World) -> None:
    """More steps are appended than those without a vector may have together, in tokens."""
    await world.begin(m=replace(STATE, period=100, period_tokens=PERIOD_TOKENS))
    async with server(world, "a") as api:
        await api.append("p", 1, 7)
    worker = Worker(world, "quick")
    await world.drain(worker, "m")
    async with worker.database.transaction(DEFAULT_TENANT) as tx:
        steps = [SizedStep.of(one) for one in await chunks.read(tx, world.key, 0, 100)]
    spans = await world.run_sql(
        "SELECT from_position, to_position FROM revision WHERE session_key = %s", world.key
    )
    for first, last in spans:
        tokens = sum(one.tokens for one in steps if first < one.position <= last)
        if tokens <= PERIOD_TOKENS:
            world.counted["compressed in time"] += last > first
        else:
            world.wrong.append(f"steps had {tokens} tokens before they were compressed")


def _reads(*ends: End) -> Patch:
    """Replies that end so are read as they are."""
    return Patch(
        where=replies, name="THEN", to=lambda _: {**THEN, **dict.fromkeys(ends, Then.READ)}
    )


def _returns(value: object) -> Callable[[Any], Any]:
    return lambda _: lambda *_: value


def _chain(name: str, scenario: Scenario, *layers: tuple[str, Patch, str]) -> Chain:
    return Chain(
        name=name,
        scenario=scenario,
        layers=tuple(
            Layer(name=change.name, what=what, change=(change,), counter=counter)
            for what, change, counter in layers
        ),
    )


def _ends() -> Iterator[Chain]:
    for end, then in THEN.items():
        if then in (Then.AGAIN, Then.MORE_ROOM):
            yield _chain(
                f"reply that ended by {end.value}",
                useless(NOTHING, end),
                ("it is read as if it were complete", _reads(end), AGAIN),
            )


REPLIES = (
    *_ends(),
    _chain(
        "refusal",
        refused,
        (
            "a refused text does not stall the memory",
            Patch(where=replies, name="check_refused", to=_returns(None)),
            "stalled",
        ),
        ("a refusal is read as a reply", _reads(End.REFUSAL), AGAIN),
    ),
    _chain(
        "prose",
        useless(PROSE, End.COMPLETE),
        (
            "a reply in prose is read as no change",
            Patch(where=revisions, name="says_nothing_changes", to=_returns(True)),
            AGAIN,
        ),
    ),
    _chain(
        "reply without room",
        without_room,
        (
            "a text is not split in halves",
            Patch(where=prism, name="halved", to=_returns(())),
            "halved",
        ),
    ),
    _chain(
        "cut answer",
        answer_without_room,
        (
            "an answer that was cut off does not end in an ellipsis",
            Patch(where=drafting, name="ELLIPSIS", to=lambda _: ""),
            MARKED,
        ),
    ),
    _chain(
        "long steps",
        steps_of_many_tokens,
        (
            "steps are compressed after they have passed their bound",
            Patch(where=_Counting, name="would_pass", to=_returns(False)),
            "compressed in time",
        ),
    ),
)
