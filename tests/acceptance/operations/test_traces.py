"""One trace from a producer's append to a watch, through real processes and a collector."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

import palimpsest
from palimpsest.v1 import chunks_pb2, session_service_pb2, session_service_pb2_grpc
from tests.acceptance.memories.kept_memory import QUICK, SCHEMA, HeldReplies, scripted
from tests.support.fake_model import FakeModel, fake_model
from tests.support.harness import Servers, api, worker
from tests.support.otlp import Collector, Span, collector

APPEND = "palimpsest.v1.SessionService/Append"
APPEND_CHUNKS = "palimpsest.v1.SessionService/AppendChunks"
#: Only makes ids: what a client of ours does with its spans is its own business.
CLIENT = TracerProvider().get_tracer("client")
ROWS = "SELECT count(*) FROM trace_context"


@pytest.fixture
def taking() -> Iterator[Collector]:
    with collector() as taking:
        yield taking


@pytest.fixture
def model() -> Iterator[FakeModel]:
    with fake_model() as model:
        yield model


@pytest.fixture
def url(servers: Servers) -> str:
    return servers.new_database()


def one(spans: list[Span]) -> Span:
    assert len(spans) == 1, spans
    return spans[0]


def ids(context: SpanContext) -> tuple[str, str]:
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


@asynccontextmanager
async def session(address: str, name: str = "s") -> AsyncIterator[palimpsest.Session]:
    """Yields a session with a memory `m`, which are made outside of all traces of the test."""
    async with palimpsest.connect(address) as client:
        made = await client.create_session(name, exist_ok=True)
        yield made


async def memory(of: palimpsest.Session) -> palimpsest.Memory:
    return await of.create_memory(
        "m", schema_source=SCHEMA, chunk_tokens=1000, encoding="amendments"
    )


def rows(servers: Servers, url: str) -> int:
    with psycopg.connect(servers.as_superuser(url)) as connection:
        (count,) = connection.execute(ROWS).fetchone() or (0,)
    return int(count)


def test_one_trace_leads_from_an_append_to_its_commit_and_on_to_a_watch(
    url: str, taking: Collector, model: FakeModel
) -> None:
    async def run(address: str) -> tuple[SpanContext, SpanContext]:
        async with session(address) as held:
            kept = await memory(held)
            with CLIENT.start_as_current_span("watching") as watching:
                watch = await kept.watch().__aenter__()
            try:
                with CLIENT.start_as_current_span("appending") as appending:
                    appended = await held.append("the cat sat")
                state = await kept.get(after=appended.read_token, timeout=200)
                assert state.revision == 1
                event = await anext(watch)
                assert event.revision.revision == 1
            finally:
                await watch.aclose()
        return appending.get_span_context(), watching.get_span_context()

    exports = taking.environment
    with api(url, **exports) as (_, address), worker(url, **scripted(model), **exports):
        appending, watching = asyncio.run(run(address))
        trace_id, span_id = ids(appending)
        taking.wait("the commit", lambda all: all.named("update_memory", trace_id))
        taking.wait("the event", lambda all: all.named("palimpsest.watch.event"))
        taking.wait("the call", lambda all: all.named("palimpsest.call", trace_id))
        taking.wait("the step", lambda all: all.named("process prism", trace_id))
        taking.wait("the append", lambda all: all.named(APPEND, trace_id))

    received = one(taking.named(APPEND, trace_id))
    sent = one(taking.named("send log", trace_id))
    step = one(taking.named("process prism", trace_id))
    called = one(taking.named("palimpsest.call", trace_id))
    chat = one(taking.named("chat openai/fake", trace_id))
    commit = one(taking.named("update_memory", trace_id))
    told = one(taking.named("palimpsest.watch.event"))
    chain = (received, sent, step, called, chat)
    assert [child.parent_id for child in chain] == [
        span_id,
        *(parent.span_id for parent in chain[:-1]),
    ]
    assert commit.parent_id == step.span_id
    written = one(taking.named("transaction append", trace_id))
    assert written.parent_id == sent.span_id, "by the queue's task, for the one that sent it"
    assert step.links == {sent.link}
    assert told.trace_id == ids(watching)[0]
    assert told.links == {commit.link}
    assert [(span.service, span.kind) for span in (*chain, commit)] == [
        ("palimpsest-api", "SERVER"),
        ("palimpsest-api", "PRODUCER"),
        ("palimpsest-worker", "CONSUMER"),
        ("palimpsest-worker", "INTERNAL"),
        ("palimpsest-executor", "CLIENT"),
        ("palimpsest-worker", "INTERNAL"),
    ]
    assert called.attributes["palimpsest.call.replayed"] is False
    assert chat.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert chat.attributes["gen_ai.usage.input_tokens"] == 100
    assert commit.attributes["gen_ai.memory.store.id"] == step.attributes["gen_ai.memory.store.id"]
    assert "the cat sat" not in str(taking.spans)


def test_a_step_of_two_traces_is_linked_to_both(
    url: str, taking: Collector, model: FakeModel
) -> None:
    async def run(address: str) -> list[SpanContext]:
        contexts = []
        async with session(address) as held:
            async with held.producer("p") as producer:
                for text in ("one", "two"):
                    with CLIENT.start_as_current_span(text) as span:
                        await producer.append(text)
                    contexts.append(span.get_span_context())
                await producer.append("without a trace")
                await producer.flush()
            # Made now, it reads all of them in one step.
            await memory(held)
        return contexts

    exports = taking.environment
    with api(url, **exports) as (_, address):
        contexts = asyncio.run(run(address))
        with worker(url, **scripted(model), **exports):
            taking.wait("the step", lambda all: all.named("process prism"))
    step = one(taking.named("process prism"))
    sent = {one.trace_id: one for one in taking.named("send log")}
    assert len(sent) == 3, "what nobody traced begins a trace of its own"
    assert step.parent_id == ""
    assert step.trace_id not in sent
    assert step.links == {one.link for one in sent.values()}
    for context in contexts:
        trace_id, span_id = ids(context)
        assert sent[trace_id].parent_id == span_id


def test_a_step_of_a_worker_that_died_before_is_linked_all_the_same(
    url: str, taking: Collector, model: FakeModel
) -> None:
    held_back = HeldReplies(model)

    async def run(address: str) -> SpanContext:
        async with session(address) as held:
            await memory(held)
            with CLIENT.start_as_current_span("appending") as appending:
                await held.append("a")
        return appending.get_span_context()

    exports = taking.environment
    with api(url, **exports) as (_, address):
        trace_id, _ = ids(asyncio.run(run(address)))
        with worker(url, **scripted(model), **exports) as doomed:
            assert held_back.asked.wait(150)
            doomed.kill()
        held_back.go.set()
        with worker(url, **scripted(model), **exports):
            taking.wait("the commit", lambda all: all.named("update_memory", trace_id))
            taking.wait("its call", lambda all: all.named("palimpsest.call", trace_id))
            taking.wait("its step", lambda all: all.named("process prism", trace_id))
    (sent,) = taking.named("send log", trace_id)
    (step,) = taking.named("process prism", trace_id)
    (call,) = taking.named("palimpsest.call", trace_id)
    assert step.parent_id == sent.span_id
    assert call.attributes["palimpsest.call.replayed"] is True, "the ledger has it"
    assert len(taking.named("chat openai/fake", trace_id)) == 1


def test_a_question_its_answer_and_the_calls_for_it_are_one_trace(
    url: str, taking: Collector, model: FakeModel
) -> None:
    model.reply = lambda n: "[ANSWER]\nyes"

    async def run(address: str) -> SpanContext:
        async with session(address) as held:
            await held.append("a cat")
            kept = await memory(held)
            with CLIENT.start_as_current_span("asking") as asking:
                answer = await kept.ask("Is there a cat?", timeout=200)
        assert answer.text == "yes"
        return asking.get_span_context()

    exports = taking.environment
    with api(url, **exports) as (_, address), worker(url, **scripted(model), **exports):
        trace_id, span_id = ids(asyncio.run(run(address)))
        taking.wait("the answer", lambda all: all.named("process answer", trace_id))
        taking.wait("the call", lambda all: all.named("palimpsest.v1.AnswerService/Ask", trace_id))
    asked = one(taking.named("palimpsest.v1.AnswerService/Ask", trace_id))
    answer = taking.named("process answer", trace_id)[0]
    assert (asked.parent_id, answer.parent_id) == (span_id, asked.span_id)
    assert answer.links == {asked.link}
    chats = taking.named("chat openai/fake", trace_id)
    called = {one.span_id: one for one in taking.named("palimpsest.call", trace_id)}
    assert chats
    assert {one.parent_id for one in chats} <= called.keys()
    assert {one.parent_id for one in called.values()} <= {
        one.span_id for one in taking.named("process answer", trace_id)
    }


@pytest.mark.parametrize(
    "garbage",
    [
        "garbage",
        "00-00000000000000000000000000000000-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "0" * 4000,
    ],
)
def test_what_is_no_traceparent_is_ignored(url: str, taking: Collector, garbage: str) -> None:
    async def run(address: str) -> None:
        async with session(address) as held:
            stub = session_service_pb2_grpc.SessionServiceStub(held._connection.channel)
            request = session_service_pb2.AppendRequest(
                session="s",
                chunks=[chunks_pb2.Chunk(text="a")],
            )
            metadata = (("traceparent", garbage), ("tracestate", "x" * 2000))
            response = await stub.Append(request, metadata=metadata)
            assert response.positions.first == 1

    with api(url, **taking.environment) as (server, address):
        asyncio.run(run(address))
        taking.wait("the append", lambda all: all.named(APPEND))
        assert server.is_running()
        assert "traceparent" not in server.log()
    assert one(taking.named(APPEND)).parent_id == ""


def test_what_is_not_sampled_leaves_no_row_and_no_span(
    servers: Servers, url: str, taking: Collector, model: FakeModel
) -> None:
    left_out = SpanContext(
        trace_id=0xA, span_id=0xB, is_remote=False, trace_flags=TraceFlags.get_default()
    )

    async def run(address: str) -> None:
        async with session(address) as held:
            with trace.use_span(NonRecordingSpan(left_out)):
                kept = await memory(held)
                async with held.producer("p") as producer:
                    await producer.append("a")
                    await producer.flush()
                appended = await held.append("b")
            await kept.get(after=appended.read_token, timeout=200)

    exports = {**taking.environment, "OTEL_TRACES_SAMPLER": "parentbased_always_off"}
    with api(url, **exports) as (_, address), worker(url, **scripted(model), **exports):
        asyncio.run(run(address))
    assert rows(servers, url) == 0
    assert taking.spans == []


def test_trees_and_states_go_on_from_the_appends_that_they_read(
    url: str, taking: Collector
) -> None:
    async def run(address: str) -> SpanContext:
        async with session(address) as held:
            tree = await held.create_tree("tree", segment_tokens=64, max_children=3)
            state = await held.create_state("state", task="Find the town.", period=3)
            with CLIENT.start_as_current_span("appending") as appending:
                async with held.producer("p") as producer:
                    for number in range(6):
                        await producer.append(f"In room {number} stands a lamp. " * 20)
                    ack = await producer.flush()
                await held.search("lamp", limit=1)
            assert ack is not None
            await tree.get(after=ack.read_token, timeout=200)
            await state.get(after=ack.read_token, timeout=200)
        return appending.get_span_context()

    exports = taking.environment
    with api(url, **exports) as (_, address), worker(url, **QUICK, **exports) as working:
        trace_id, span_id = ids(asyncio.run(run(address)))
        # What is left is sent by one that stops.
        working.stop()
        taking.wait("the search", lambda all: all.named("search_memory", trace_id))
    spans = {one.span_id: one for one in taking.spans if one.trace_id == trace_id}
    sent = {one.link for one in taking.named("send log", trace_id)}
    nodes = taking.named("process tree", trace_id)
    leaves = [one for one in nodes if one.attributes["palimpsest.level"] == 0]
    parents = [one for one in nodes if one.attributes["palimpsest.level"] > 0]
    states = taking.named("process state", trace_id)
    assert leaves
    assert states
    assert all(one.links <= sent for one in (*leaves, *states))
    assert all(one.links for one in (*leaves, *states))
    assert parents, "six leaves of three children have parents"
    assert {link for one in parents for link in one.links} <= {one.link for one in nodes}
    commits = taking.named("update_memory", trace_id)
    stored = {link for one in commits for link in one.links}
    assert {one.link for one in nodes} <= stored, "nodes are stored together"
    for one in (*nodes, *states, *commits, *taking.named("palimpsest.call", trace_id)):
        assert one.parent_id in spans, one
    assert one_parent(taking.named("search_memory", trace_id), spans).parent_id == span_id


def one_parent(found: list[Span], spans: dict[str, Span]) -> Span:
    return spans[one(found).parent_id]
