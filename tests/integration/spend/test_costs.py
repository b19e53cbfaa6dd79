"""Costs: sums of the ledger by purpose, model and residual, and a memory's comparison."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

import palimpsest
from palimpsest import sync
from palimpsest.v1 import billing_service_pb2 as pb
from palimpsest.v1 import billing_service_pb2_grpc
from service.domain.prism.amending import replay
from service.domain.prism.spec import Encoding
from service.domain.spend.prices import CacheFamily, ModelPrices
from service.domain.values.json_values import canonical
from service.domain.values.tenancy import DEFAULT_TENANT
from service.settings.config import Config
from service.usecases.spend import comparing
from service.usecases.spend.comparing import Comparer
from storage.engine.database import Database
from storage.memories import revisions
from storage.memories.revisions import NewRevision
from storage.spend import costs
from storage.spend.spend import Days, SpendFilter
from tests.integration.support.scripted import ITEM, KEY, MEMORY, Script, make, prism_method, read
from tests.integration.support.writing import append_texts

PRICES = ModelPrices(
    family=CacheFamily.PLAIN,
    input_usd=1e-6,
    read=0.1,
    write=1.25,
    output=5.0,
    granularity_tokens=1,
    min_tokens=0,
    ttl_seconds=300,
)


def comparer(database: Database, prices: ModelPrices = PRICES) -> Comparer:
    return Comparer(database, lambda _: prices, Config())


def updates(_: Any, n: int) -> str:
    """Returns a reply that changes one of three topics."""
    return f'[OBJECTS FOR ADD]\n{{"$.topics.t{n % 3}": {{"add": "value {n} {"x" * 200}"}}}}'


async def kept(database: Database, steps: int, **changes: Any) -> Script:
    """Returns a memory that has made so many steps."""
    script = Script(reply=updates)
    await make(database, [f"chunk {n}" for n in range(steps)], **changes)
    await prism_method(database, script).drain(ITEM)
    assert (await read(database)).applied_position == steps
    return script


async def test_what_is_compared_is_what_the_memory_did(database: Database) -> None:
    await kept(database, 12, fold_tokens=200)
    stored = await read(database)
    subject = comparer(database)
    async with database.transaction(DEFAULT_TENANT) as tx:
        facts = await subject._read(tx, stored)
        (newest,) = [one for (one,) in await tx.fetch(text("SELECT value FROM prism_value"))]
        folds = [
            one
            for (one,) in await tx.fetch(
                text(
                    "SELECT (SELECT count(*) FROM revision s WHERE s.kind = 'step'"
                    " AND s.revision < r.revision) FROM revision r WHERE kind = 'fold'"
                    " ORDER BY revision"
                )
            )
        ]
        assert facts is not None
        assert facts.folds == tuple(number for number in folds if number < 12)
    assert facts.folds, "it was folded"
    value: Any = {}
    for step in facts.log.steps:
        value = replay(facts.log.schema, value, step.amendments)
    assert canonical(value) == newest
    assert {(one.chunk_tokens, one.output_tokens) for one in facts.log.steps} == {(2, 3)}
    found = await subject.compare(DEFAULT_TENANT, stored)
    assert found is not None
    assert (found.steps, found.all_steps) == (12, 12)
    assert (found.from_position, found.to_position) == (0, 12)
    assert (found.measured.prompts, found.measured.total_tokens) == (12, 12 * 9)
    assert found.measured.output_tokens == 36
    assert found.measured.cost_micro_usd is None
    assert found.measured.cost_index == (108 + 3 * 36) / 1e6
    simulated = (found.as_kept, found.in_place, found.amendments, found.adaptive)
    assert {one.output_tokens for one in simulated} == {36}
    assert all(one.cost_micro_usd is not None for one in simulated)
    assert found.as_kept.total_tokens < found.amendments.total_tokens
    assert found.as_kept.total_tokens > found.in_place.total_tokens


async def test_changes_between_steps_are_there_for_the_next_one(database: Database) -> None:
    await kept(database, 3)
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await revisions.lock(tx, KEY, MEMORY)
        assert held is not None
        (edit,) = (await costs.revisions_from(tx, KEY, MEMORY, 1))[0].amendments
        stored = await read(database)
        await revisions.commit_revision(
            tx,
            held,
            NewRevision(
                kind="edit",
                to_position=3,
                digest=b"",
                amendments=[edit],
                value="{}",
                base='{"topics":{}}',
            ),
            has_work=None,
        )
    await append_texts(database, "s", ["d"], first=4)
    await prism_method(database, Script(reply=updates)).drain(ITEM)
    stored = await read(database)
    async with database.transaction(DEFAULT_TENANT) as tx:
        facts = await comparer(database)._read(tx, stored)
    assert facts is not None
    assert [len(step.amendments) for step in facts.log.steps] == [1, 1, 2, 1]
    assert facts.folds == (3,)


async def test_an_in_place_memory_is_kept_in_place(database: Database) -> None:
    await kept(database, 4, encoding=Encoding.IN_PLACE)
    found = await comparer(database).compare(DEFAULT_TENANT, await read(database))
    assert found is not None
    assert found.as_kept == found.in_place


async def test_long_logs_are_compared_by_their_newest_steps(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kept(database, 6)
    stored = await read(database)
    monkeypatch.setattr(comparing, "MAX_STEPS", 4)
    found = await comparer(database).compare(DEFAULT_TENANT, stored)
    assert found is not None
    assert (found.steps, found.all_steps, found.from_position, found.to_position) == (4, 6, 2, 6)
    assert found.measured.prompts == 4
    monkeypatch.setattr(comparing, "MAX_STEP_BYTES", 1)
    found = await comparer(database).compare(DEFAULT_TENANT, stored)
    assert found is not None
    assert (found.steps, found.from_position, found.to_position) == (1, 5, 6)


async def test_steps_before_a_rollback_are_not_compared(database: Database) -> None:
    await kept(database, 3)
    async with database.transaction(DEFAULT_TENANT) as tx:
        held = await revisions.lock(tx, KEY, MEMORY)
        assert held is not None
        restored = '{"topics":{}}'
        back = NewRevision(
            kind="rollback",
            to_position=3,
            digest=b"",
            value=restored,
            base=restored,
            restored_revision=0,
        )
        await revisions.commit_revision(tx, held, back, has_work=None)
    assert await comparer(database).compare(DEFAULT_TENANT, await read(database)) is None
    await append_texts(database, "s", ["d", "e"], first=4)
    await prism_method(database, Script(reply=updates)).drain(ITEM)
    found = await comparer(database).compare(DEFAULT_TENANT, await read(database))
    assert found is not None
    assert (found.steps, found.all_steps, found.from_position) == (2, 5, 3)


async def test_without_a_price_money_is_unknown_and_tokens_are_not(database: Database) -> None:
    await kept(database, 2)
    no_price = ModelPrices(
        **{
            name: getattr(PRICES, name)
            for name in ModelPrices.__dataclass_fields__
            if name != "input_usd"
        },
        input_usd=None,
    )
    found = await comparer(database, no_price).compare(DEFAULT_TENANT, await read(database))
    assert found is not None
    assert found.adaptive.cost_micro_usd is None
    assert found.adaptive.total_tokens > 0


async def test_calls_are_summed_by_purpose_model_and_residual(database: Database) -> None:
    await kept(database, 3)
    yesterday = datetime.now(UTC).date() - timedelta(1)
    async with database.transaction(DEFAULT_TENANT) as tx:
        wanted = SpendFilter(session_key=KEY)
        (line,) = await costs.lines(tx, wanted)
        assert (line.memory, line.purpose, line.model) == ("m", "revise", "test/scripted")
        assert (line.spend.calls, line.spend.input_tokens) == (3, 27)
        assert (line.cost.cached_tokens, line.cost.net_tokens) == (0, 27)
        classes = await costs.residuals(tx, wanted)
        assert sum(one.calls for one in classes) == 3
        none = SpendFilter(session_key=KEY, days=Days(first=yesterday, last=yesterday))
        assert await costs.lines(tx, none) == []
        assert await costs.residuals(tx, none) == []


# Over gRPC, with the offline model


@pytest.fixture
async def session(client: palimpsest.Client) -> palimpsest.Session:
    """Returns a session with a memory that has read three chunks and answered once."""
    made = await client.create_session(f"costs-{uuid4().hex}")
    memory = await made.create_memory(
        "m", schema_source="class N:\n    topics: dict[str, list[str]]\n", chunk_tokens=1
    )
    async with made.producer("p") as producer:
        for number in range(3):
            await producer.append(f"Pier {number}\n=====\n\nPier {number} is a pier of stone.\n")
        ack = await producer.flush()
    assert ack is not None
    await memory.ask("What is pier 1?", after=ack.read_token)
    return made


async def test_a_memorys_cost_is_reported_with_its_comparison(session: palimpsest.Session) -> None:
    used = await session.usage("m", group_by=["memory", "purpose"])
    assert [(line.session, line.memory, line.purpose, line.model) for line in used.lines] == [
        (session.id, "m", "answer", "offline/extractive"),
        (session.id, "m", "revise", "offline/extractive"),
    ]
    revise = used.lines[1].usage
    assert (revise.calls, revise.unreported_calls) == (3, 3)
    assert not revise.is_reported
    assert revise.is_priced
    found = await session.cost_report("m")
    assert found.total == used.total
    assert found.total.calls == 4
    assert [(line.outcome, line.calls) for line in found.cache] == [("unknown", 4)]
    assert found.reading.prompts == 3
    assert found.reading.total_tokens == revise.input_tokens
    assert found.reading.cached_tokens == revise.predicted_cached_tokens
    assert found.reading.cost_index == pytest.approx(
        (found.reading.net_tokens + 3 * revise.output_tokens) / 1e6
    )
    compared = found.comparison
    assert compared is not None
    assert (compared.steps, compared.all_steps, compared.truncated) == (3, 3, False)
    assert compared.positions == palimpsest.PositionRange(first=1, last=3)
    assert compared.measured == found.reading
    assert compared.adaptive.output_tokens == revise.output_tokens
    assert compared.adaptive.cost_micro_usd == 0
    today = datetime.now(UTC).date()
    of_today = await session.cost_report("m", first_day=today - timedelta(1), last_day=today)
    assert (of_today.comparison, of_today.total) == (None, found.total)
    assert (await session.cost_report("m", last_day=today - timedelta(2))).cache == ()
    assert (await session.cost_report()).comparison is None


async def test_what_was_used_is_listed_in_lines(
    client: palimpsest.Client, session: palimpsest.Session
) -> None:
    await session.generate_schema("Piers.", "Which pier is made of stone?")
    found = await session.usage(group_by=["memory"])
    assert [(line.session, line.memory, line.day, line.purpose) for line in found.lines] == [
        (session.id, "", None, ""),
        (session.id, "m", None, ""),
    ]
    assert found.total.calls == 5
    assert (await session.usage("m")).total.calls == 4
    by_day = await session.usage(group_by=["day"])
    assert sum(line.usage.calls for line in by_day.lines) == 5
    assert {(line.session, line.memory) for line in by_day.lines} == {("", "")}
    (alone,) = (await session.usage(group_by=[])).lines
    assert alone.usage == found.total
    by_purpose = await session.usage()
    assert [(line.session, line.memory, line.purpose) for line in by_purpose.lines] == [
        ("", "", "answer"),
        ("", "", "revise"),
        ("", "", "schema"),
    ]
    assert by_purpose.total == found.total
    everyones = await client.usage()
    mine = [line for line in everyones.lines if line.session == session.id]
    assert [line.usage for line in mine] == [found.total]
    days = (await client.usage(group_by=["session", "day"])).lines
    assert sum(one.usage.calls for one in days if one.session == session.id) == 5


@pytest.mark.parametrize("groups", [["memory"], ["memory", "day"], ["purpose", "memory"]])
async def test_lines_have_pages(
    client: palimpsest.Client, session: palimpsest.Session, groups: list[palimpsest.Grouping]
) -> None:
    await session.generate_schema("Piers.", "Which pier is made of stone?")
    stub = billing_service_pb2_grpc.BillingServiceStub(client.channel)
    numbers = [pb.ListUsageRequest.Grouping.Value(f"GROUPING_{one.upper()}") for one in groups]
    request = pb.ListUsageRequest(session=session.id, group_by=numbers, page_size=5000)
    (whole,) = [page async for page in client._connection.pages(stub.ListUsage, request)]
    assert len(whole.lines) >= 2
    request.page_size = 1
    pages = [page async for page in client._connection.pages(stub.ListUsage, request)]
    assert [line for page in pages for line in page.lines] == list(whole.lines)
    assert {len(page.lines) for page in pages} == {1}
    assert {page.total.calls for page in pages} == {5}


async def test_bad_input_is_refused(client: palimpsest.Client, session: palimpsest.Session) -> None:
    stub = billing_service_pb2_grpc.BillingServiceStub(client.channel)

    async def refused(request: Any) -> str:
        method = stub.ListUsage if isinstance(request, pb.ListUsageRequest) else stub.GetCostReport
        with pytest.raises(palimpsest.PalimpsestError) as error:
            await client.call(method, request)
        return f"{type(error.value).__name__}: {error.value} {sorted(error.value.fields)}"

    for kind in (pb.ListUsageRequest, pb.GetCostReportRequest):
        name = session.id
        no_day = await refused(kind(session=name, first_day="2026-02-30"))
        assert no_day.startswith("InvalidArgument: first_day: there is no day 2026-02-30")
        assert "last_day" in await refused(kind(session=name, last_day="yesterday"))
        backwards = kind(session=name, first_day="2026-02-02", last_day="2026-02-01")
        assert "first_day must not be later than last_day" in await refused(backwards)
        assert (await refused(kind(session="nothing"))).startswith("NotFound")
        assert (await refused(kind(session=name, memory="nothing"))).startswith("NotFound")
    named = "name the session of the memory, or of the purposes"
    assert named in await refused(pb.ListUsageRequest(memory="m"))
    purpose, day = pb.ListUsageRequest.GROUPING_PURPOSE, pb.ListUsageRequest.GROUPING_DAY
    assert named in await refused(pb.ListUsageRequest(group_by=[purpose]))
    mixed = pb.ListUsageRequest(session=session.id, group_by=[purpose, day])
    assert "group by PURPOSE alone, or with MEMORY" in await refused(mixed)
    assert "group_by" in await refused(pb.ListUsageRequest(group_by=[day, day]))
    assert "page_size" in await refused(pb.ListUsageRequest(page_size=-1))
    assert "token" in await refused(pb.ListUsageRequest(page_token="x"))
    assert (await refused(pb.GetCostReportRequest())).startswith("InvalidArgument")
    with pytest.raises(ValueError, match="group_by must be"):
        await session.usage(group_by=["week"])  # type: ignore[list-item]


def test_the_synchronous_client_has_costs(address: str) -> None:
    with sync.Client(address) as client:
        session = client.create_session(f"costs-{uuid4().hex}")
        assert session.cost_report().cache == ()
        assert session.usage(group_by=["memory", "day"]).lines == ()
        assert isinstance(client.usage(), palimpsest.UsageReport)
