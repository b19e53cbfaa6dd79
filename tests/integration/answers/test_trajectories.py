"""Events and answers of navigations in the database."""

from dataclasses import replace
from uuid import UUID, uuid4

from service.domain.answers.navigation_request import NavigationRequest
from service.domain.answers.trajectory import (
    Action,
    Event,
    EventKind,
    NoAnswer,
)
from service.domain.prompting.ends import End
from service.domain.tree.recording import Statistics
from service.domain.values.tenancy import DEFAULT_TENANT
from storage.answers import answers, listing, trajectories
from storage.answers.answers import StoredCitation
from storage.engine.database import Database, Transaction
from tests.integration.support.tree_rows import KEY, TREE, make_tree

EVENT = Event(
    ordinal=1,
    kind=EventKind.TRIAGE,
    action=Action.ENTER,
    node_id="root",
    level=2,
    from_position=1,
    to_position=9,
    shown=("1.1", "1.2"),
    targets=("1.2",),
    reasoning="it tells of 'geese' \\ {}",
    template="tree.triage/1",
    reply="Action: 1",
    input_tokens=100,
    cached_tokens=None,
    output_tokens=5,
)


async def asked(tx: Transaction, navigation: NavigationRequest | None = None) -> UUID:
    answer_id = uuid4()
    await answers.create(
        tx,
        session_key=KEY,
        answer_id=answer_id,
        memory_id=TREE,
        query="?",
        revision=1,
        applied_position=1,
        navigation=navigation,
    )
    return answer_id


async def test_an_event_is_written_once_and_read_as_it_was(database: Database) -> None:
    await make_tree(database, ["a"])
    async with database.transaction(DEFAULT_TENANT) as tx:
        key = KEY, await asked(tx)
        await trajectories.append(tx, key, EVENT)
        await trajectories.append(tx, key, replace(EVENT, input_tokens=0))
        await trajectories.append(tx, key, replace(EVENT, ordinal=2, cached_tokens=7))
        assert await trajectories.list_events(tx, key, 0) == [
            EVENT,
            replace(EVENT, ordinal=2, cached_tokens=7),
        ]
        page = await trajectories.page_events(tx, key, 0, 9, max_bytes=1)
        assert (page.items, page.more) == ([replace(EVENT, reply="")], True)
        page = await trajectories.page_events(tx, key, 1, 1, max_bytes=2**20)
        assert (len(page.items), page.more) == (1, False)
        assert await trajectories.list_events(tx, key, 2) == []


async def test_an_event_says_how_its_reply_ended(database: Database) -> None:
    await make_tree(database, ["a"])
    cut = replace(EVENT, end=End.LENGTH)
    async with database.transaction(DEFAULT_TENANT) as tx:
        key = KEY, await asked(tx)
        await trajectories.append(tx, key, cut)
        assert await trajectories.list_events(tx, key, 0) == [cut]


async def test_an_event_without_an_end_is_that_of_a_complete_reply(database: Database) -> None:
    await make_tree(database, ["a"])
    async with database.transaction(DEFAULT_TENANT) as tx:
        key = KEY, await asked(tx)
        await trajectories.append(tx, key, EVENT)
        await tx.execute(
            "INSERT INTO trajectory_event (session_key, answer_id, tenant_id, ordinal, event)"
            " SELECT session_key, answer_id, tenant_id, ordinal + 1, event - 'end'"
            " FROM trajectory_event"
        )
        assert await trajectories.list_events(tx, key, 1) == [replace(EVENT, ordinal=2)]


async def test_new_events_of_many_answers_are_one_query(database: Database) -> None:
    await make_tree(database, ["a"])
    async with database.transaction(DEFAULT_TENANT) as tx:
        keys = [(KEY, await asked(tx)) for _ in range(3)]
        for ordinal in range(1, 6):
            for key in keys[:2]:
                await trajectories.append(tx, key, replace(EVENT, ordinal=ordinal))
        heard = {(*keys[0], 0), (*keys[0], 3), (*keys[1], 4), (*keys[2], 0)}
        found = await trajectories.read_new(tx, heard, 3)
    assert {key: [event.ordinal for event in events] for key, events in found.items()} == {
        (*keys[0], 0): [1, 2, 3],
        (*keys[0], 3): [4, 5],
        (*keys[1], 4): [5],
    }
    assert found[*keys[1], 4] == [replace(EVENT, ordinal=5, reply="")]


async def test_an_answer_keeps_how_it_was_asked_and_what_came_of_it(database: Database) -> None:
    await make_tree(database, ["a"])
    request = NavigationRequest(options=("yes", "no"), hybrid_leaves=3, beam=2, max_calls=9)
    statistics = Statistics(calls=3, valid_actions=3, reverts=1, leaves_read=2, tokens=90)
    cited = StoredCitation(
        position=1,
        path="",
        revision=1,
        excerpt="a",
        node_id="0.1",
        from_position=1,
        to_position=1,
    )
    async with database.transaction(DEFAULT_TENANT) as tx:
        answer_id = await asked(tx, request)
        stored = await answers.get(tx, KEY, answer_id)
        assert stored is not None
        assert (stored.navigation, stored.statistics, stored.no_answer) == (request, None, None)
        assert await answers.complete(
            tx,
            KEY,
            answer_id,
            text="x",
            citations=[cited],
            model="m",
            no_answer=NoAnswer.NOT_FOUND,
            statistics=statistics,
        )
        stored = await answers.get(tx, KEY, answer_id)
        assert stored is not None
        assert stored.citations == (cited,)
        assert (stored.no_answer, stored.statistics) == (NoAnswer.NOT_FOUND, statistics)
        other = await answers.get(tx, KEY, await asked(tx))
        assert other is not None
        assert other.navigation is None


async def test_the_results_of_all_navigations_are_summed(database: Database) -> None:
    await make_tree(database, ["a"])
    async with database.transaction(DEFAULT_TENANT) as tx:
        nothing = await trajectories.sum_up(tx, KEY, TREE)
        assert (nothing.navigations, nothing.statistics) == (0, Statistics())
        for no_answer, reverts in ((None, 0), (None, 2), (NoAnswer.STEP_LIMIT, 1)):
            await answers.complete(
                tx,
                KEY,
                await asked(tx, NavigationRequest()),
                text="x",
                citations=[],
                model="m",
                no_answer=no_answer,
                statistics=Statistics(calls=4, reverts=reverts, text_tokens=2**40),
            )
        await asked(tx, NavigationRequest())
        sums = await trajectories.sum_up(tx, KEY, TREE)
    assert (sums.navigations, sums.answered, sums.stray, sums.stray_answered) == (3, 2, 2, 1)
    assert sums.statistics == Statistics(calls=12, reverts=3, text_tokens=3 * 2**40)


async def test_answered_questions_are_listed_oldest_first(database: Database) -> None:
    await make_tree(database, ["a"])
    made: list[UUID] = []
    for no_answer in (None, NoAnswer.NOT_FOUND, None, None):
        async with database.transaction(DEFAULT_TENANT) as tx:
            made.append(await asked(tx, NavigationRequest()))
            await answers.complete(
                tx,
                KEY,
                made[-1],
                text="x",
                citations=[],
                model="m",
                no_answer=no_answer,
                statistics=Statistics(),
            )
    async with database.transaction(DEFAULT_TENANT) as tx:
        first = await listing.list_answered(tx, KEY, TREE, after=None, limit=2)
        assert [one.answer_id for one in first] == [made[0], made[2]]
        after = first[-1].created_at, first[-1].answer_id
        rest = await listing.list_answered(tx, KEY, TREE, after=after, limit=2)
        assert [one.answer_id for one in rest] == [made[3]]
        some = await listing.list_answered(tx, KEY, TREE, after=None, limit=9, ids=[made[3]])
        assert [one.answer_id for one in some] == [made[3]]
