"""Threads, sources and times of chunks, over gRPC, from the append to search and back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

import palimpsest
from palimpsest import _errors
from palimpsest.v1 import chunks_pb2, common_pb2, session_service_pb2, session_service_pb2_grpc
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.values.tenancy import DEFAULT_TENANT
from service.rpc.convert.answers import AnswerMessages
from service.usecases.answers.ask import AskDone
from service.usecases.log.chunk_filter import ChunkFilter
from service.usecases.log.sessions import read_chunks
from storage.answers import answers
from storage.answers.answers import StoredCitation
from storage.engine.database import Database
from storage.log import pages as log_pages
from storage.log import sessions
from tests.integration.support.stored_answers import KEY, read_answer, store_question
from tests.integration.support.writing import append_chunks
from verification.batches import append_batch

DAY = 86_400
#: Thread, source and day of what each chunk says, which begins with "harbour".
SAID = (
    ("", "", None),
    ("auth0|5f7c", "user:42", 1),
    ("auth0|5f7c", "crm", 2),
    ("josé@example.org", "user:42", 3),
    ("jose\u0301@example.org", "", None),
    ("100%_'\"\\", "שלום", -400_000),
    ("😀" * 64, "👩\u200d👧", 2_900_000),
)
ODD = tuple(dict.fromkeys(thread for thread, _, _ in SAID if thread))


def at(day: int, nanos: int = 0) -> Timestamp:
    return Timestamp(seconds=day * DAY, nanos=nanos)


@dataclass(frozen=True)
class Site:
    session: str
    stub: Any

    async def append(self, *chunks: chunks_pb2.Chunk, request_id: str = "") -> int:
        """Appends them; returns the position of the first."""
        request = session_service_pb2.AppendRequest(
            session=self.session, chunks=chunks, request_id=request_id
        )
        appended = await self.stub.Append(request)
        return int(appended.positions.first)

    async def produce(self, chunk: chunks_pb2.Chunk) -> int:
        """Appends it as the first one of the producer p; returns its position."""
        opening = session_service_pb2.AppendChunksRequest.Open(
            session=self.session, producer_id="p"
        )
        sent = chunks_pb2.Chunk()
        sent.CopyFrom(chunk)
        sent.producer_sequence = 1
        return int((await append_batch(self.stub, opening, [sent])).through_position)

    async def listed(self, page_size: int = 0, **wanted: Any) -> list[int]:
        """Returns the positions of all pages."""
        found: list[int] = []
        request = session_service_pb2.ListChunksRequest(
            session=self.session, page_size=page_size, filter=filter_of(**wanted)
        )
        while True:
            page = await self.stub.ListChunks(request)
            assert not page_size or len(page.chunks) <= page_size
            found += [one.position for one in page.chunks]
            request.page_token = page.next_page_token
            if not request.page_token:
                return found

    async def found(self, **wanted: Any) -> list[int]:
        request = session_service_pb2.SearchChunksRequest(
            session=self.session,
            query="harbour",
            limit=100,
            mode=session_service_pb2.SEARCH_MODE_WORDS,
            filter=filter_of(**wanted),
        )
        answer = await self.stub.SearchChunks(request)
        return sorted(one.chunk.position for one in answer.results)


def filter_of(
    from_position: int = 0,
    to_position: int = 0,
    occurred_after: Timestamp | None = None,
    occurred_before: Timestamp | None = None,
    **others: Any,
) -> chunks_pb2.ChunkFilter:
    return chunks_pb2.ChunkFilter(
        positions=common_pb2.PositionRange(first=from_position, last=to_position),
        occurred=common_pb2.TimeRange(start=occurred_after, end=occurred_before),
        **others,
    )


def content(listed: chunks_pb2.Chunk) -> chunks_pb2.Chunk:
    """Returns what was appended: without what the server adds."""
    for field in ("position", "created_at", "producer_id", "producer_sequence"):
        listed.ClearField(field)
    return listed


def chunk(thread: str, source: str, day: int | None, text: str = "harbour") -> chunks_pb2.Chunk:
    occurred_at = None if day is None else at(day)
    return chunks_pb2.Chunk(text=text, thread=thread, source=source, occurred_at=occurred_at)


@pytest.fixture
async def site(client: palimpsest.Client) -> Site:
    session = await client.create_session(f"user|{uuid4().hex}")
    stub = session_service_pb2_grpc.SessionServiceStub(client.channel)
    made = Site(session.id, stub)
    await made.append(*(chunk(*said) for said in SAID))
    return made


async def test_what_is_given_comes_back_as_it_was(site: Site) -> None:
    page = await site.stub.ListChunks(session_service_pb2.ListChunksRequest(session=site.session))
    assert [content(one) for one in page.chunks] == [chunk(*said) for said in SAID]
    assert page.next_page_token == ""


@pytest.mark.parametrize(
    ("wanted", "positions"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7]),
        ({"threads": ["auth0|5f7c"]}, [2, 3]),
        ({"threads": ["auth0|5f7c", "josé@example.org"]}, [2, 3, 4]),
        # They look alike and are two.
        ({"threads": ["jose\u0301@example.org"]}, [5]),
        ({"threads": [""]}, [1]),
        ({"threads": ["", "josé@example.org"]}, [1, 4]),
        ({"threads": ["100%_'\"\\"]}, [6]),
        ({"threads": ["100%"]}, []),
        ({"threads": ["😀" * 64]}, [7]),
        ({"threads": list(ODD)}, [2, 3, 4, 5, 6, 7]),
        ({"excluded_threads": ["auth0|5f7c"]}, [1, 4, 5, 6, 7]),
        ({"excluded_threads": ["", "auth0|5f7c"]}, [4, 5, 6, 7]),
        ({"excluded_threads": [""]}, [2, 3, 4, 5, 6, 7]),
        ({"threads": ["auth0|5f7c"], "excluded_threads": ["auth0|5f7c"]}, []),
        ({"sources": ["user:42"]}, [2, 4]),
        ({"sources": ["user:42", ""]}, [1, 2, 4, 5]),
        ({"sources": ["שלום"]}, [6]),
        ({"sources": ["crm"], "threads": ["auth0|5f7c"]}, [3]),
        ({"occurred_after": at(2)}, [3, 4, 7]),
        ({"occurred_before": at(2)}, [2, 6]),
        ({"occurred_after": at(2), "occurred_before": at(3)}, [3]),
        ({"occurred_after": at(1), "sources": ["user:42"], "to_position": 3}, [2]),
        ({"from_position": 3, "excluded_threads": list(ODD[-2:])}, [3, 4, 5]),
    ],
)
async def test_a_filter_lists_and_finds_the_same(
    site: Site, wanted: dict[str, Any], positions: Sequence[int]
) -> None:
    assert await site.listed(**wanted) == positions
    assert await site.listed(page_size=1, **wanted) == positions
    assert await site.found(**wanted) == positions


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (filter_of(occurred_after=at(2), occurred_before=at(1)), "filter.occurred"),
        (filter_of(from_position=2, to_position=1), "filter.positions"),
        (filter_of(threads=[str(n) for n in range(65)]), "filter.threads"),
        (filter_of(threads=["a", "a"]), "filter.threads"),
        (filter_of(metadata={"a": "\0"}), "filter.metadata"),
    ],
)
async def test_a_filter_that_nothing_fits_is_refused(
    site: Site, wanted: chunks_pb2.ChunkFilter, field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await site.stub.ListChunks(
            session_service_pb2.ListChunksRequest(session=site.session, filter=wanted)
        )
    error = _errors.from_rpc(caught.value, "test")
    assert (error.reason, list(error.fields)) == ("FIELD_INVALID", [field])


async def test_a_page_token_is_of_its_filter_and_session(
    client: palimpsest.Client, site: Site
) -> None:
    other = await client.create_session(f"other|{uuid4().hex}")
    request = session_service_pb2.ListChunksRequest(
        session=site.session, page_size=1, filter=filter_of(threads=["auth0|5f7c"])
    )
    token = (await site.stub.ListChunks(request)).next_page_token
    for session, wanted in (
        (other.id, request.filter),
        (site.session, filter_of(threads=["josé@example.org"])),
        (site.session, filter_of()),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await site.stub.ListChunks(
                session_service_pb2.ListChunksRequest(
                    session=session, filter=wanted, page_token=token
                )
            )
        assert _errors.from_rpc(caught.value, "test").reason == "TOKEN_INVALID"


async def test_the_client_appends_and_lists_by_them(client: palimpsest.Client) -> None:
    session = await client.create_session(f"client|{uuid4().hex}")
    when = datetime(2026, 5, 3, 10, tzinfo=UTC)
    await session.append(
        [
            "of all",
            {"role": "user", "content": "own", "thread": "t2", "occurred_at": when},
            palimpsest.Chunk(kind="text", text="chunk", source="crm"),
        ],
        thread="t1",
        source="user:42",
    )
    async with session.producer("p") as producer:
        await producer.append("produced", thread="t2", metadata={"k": "v"})
        await producer.append_step(action="go", source="robot", occurred_at=when)
    found = [one async for one in session.chunks()]
    assert [(one.kind, one.thread, one.source, one.occurred_at) for one in found] == [
        ("text", "t1", "user:42", None),
        ("message", "t2", "user:42", when),
        ("text", "t1", "crm", None),
        ("text", "t2", "", None),
        ("agent_step", "", "robot", when),
    ]

    async def listed(**wanted: Any) -> list[int]:
        return [one.position async for one in session.chunks(**wanted)]

    assert await listed(threads=["t2"]) == [2, 4]
    assert await listed(threads=["t2"], from_position=3) == [4]
    assert await listed(excluded_threads=["t1", ""]) == [2, 4]
    assert await listed(sources=["user:42"], to_position=1) == [1]
    assert await listed(occurred_since=when) == [2, 5]
    assert await listed(occurred_until=when) == []
    assert await listed(kinds=["agent_step"]) == [5]
    assert await listed(metadata={"k": "v"}) == [4]
    assert await listed(since=datetime.now(UTC) + timedelta(days=1)) == []
    with pytest.raises(ValueError, match="occurred_since must have a time zone"):
        await listed(occurred_since=datetime(2026, 5, 3))
    with pytest.raises(ValueError, match="threads must be a collection"):
        await listed(threads="t2")
    copied = await client.create_session(f"copy|{uuid4().hex}")
    await copied.append(found)
    again = [one async for one in copied.chunks()]
    assert [(one.text, one.action, one.thread, one.occurred_at) for one in again] == [
        (one.text, one.action, one.thread, one.occurred_at) for one in found
    ]


@pytest.mark.parametrize(
    "other",
    [
        chunk("b", "", None),
        chunk("", "a", None),
        chunk("a", "", 0),
        chunk("", "", None),
        chunk("a", "a", None),
    ],
)
async def test_another_thread_source_or_time_is_other_content(
    site: Site, other: chunks_pb2.Chunk
) -> None:
    first = chunk("a", "", None)
    position = await site.produce(first)
    await site.append(first, request_id="r")
    assert await site.produce(first) == position
    for call in (site.produce(other), site.append(other, request_id="r")):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS


async def test_a_time_is_kept_in_microseconds(site: Site) -> None:
    given = chunks_pb2.Chunk(text="x", occurred_at=at(-1, 123_456_789))
    position = await site.produce(given)
    # The rest was cut off before the digest was made.
    again = chunks_pb2.Chunk(text="x", occurred_at=at(-1, 123_456_000))
    assert await site.produce(again) == position
    page = await site.stub.ListChunks(
        session_service_pb2.ListChunksRequest(
            session=site.session, filter=filter_of(from_position=position)
        )
    )
    assert content(page.chunks[0]) == again


async def test_a_page_with_a_filter_looks_at_so_many_chunks(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_pages, "MAX_LOOKED", 4)
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
    threads = ["a", "b", "", "a", "a", "c", "a", "b", "", "c", "a"]
    chunks = [Chunk(kind=ChunkKind.TEXT, text="x", thread=one, source="s") for one in threads]
    await append_chunks(database, "s", chunks)

    async def pages(wanted: ChunkFilter) -> list[tuple[list[int], int]]:
        found: list[tuple[list[int], int]] = []
        first = 1
        while first:
            page = await read_chunks(
                database,
                DEFAULT_TENANT,
                "s",
                from_position=first,
                limit=3,
                max_bytes=2**20,
                wanted=wanted,
            )
            first = page.next_position
            found.append(([one.position for one in page.chunks], first))
        return found

    # Of a thread as many of its own, of two half of it each; otherwise as many of all.
    assert await pages(ChunkFilter(threads=tuple("b"))) == [([2, 8], 0)]
    assert await pages(ChunkFilter(threads=tuple("a"))) == [([1, 4, 5], 7), ([7, 11], 0)]
    assert await pages(ChunkFilter(threads=tuple("ac"))) == [
        ([1, 4], 5),
        ([5, 6, 7], 8),
        ([10, 11], 0),
    ]
    assert await pages(ChunkFilter(threads=("", "b"))) == [
        ([2, 3], 5),
        ([8], 9),
        ([9], 0),
    ]
    assert await pages(ChunkFilter(sources=tuple("x"))) == [([], 5), ([], 9), ([], 0)]


async def test_citations_say_thread_source_and_time(database: Database) -> None:
    async with database.transaction(DEFAULT_TENANT) as tx:
        await sessions.create(tx, KEY, "s")
    when = datetime(1969, 7, 20, 20, 17, 40, 1, tzinfo=UTC)
    plain = Chunk(kind=ChunkKind.TEXT, text="x")
    headed = replace(plain, thread="auth0|5f7c", source="é", occurred_at=when)
    await append_chunks(database, "s", [plain, headed, replace(plain, source="crm")])
    item = await store_question(database, None, "?", revision=0, applied_position=3)
    cited = [StoredCitation(position=n, path="", revision=0, excerpt="x") for n in (1, 2, 3, 2)]
    async with database.transaction(DEFAULT_TENANT) as tx:
        await answers.complete(tx, KEY, item.item_id, text="x", citations=cited, model="m")
    stored = await read_answer(database, item)
    shown = AnswerMessages(b"k").answer(AskDone(answer=stored, usage=())).citations
    assert [(one.thread, one.source, one.HasField("occurred_at")) for one in shown] == [
        ("", "", False),
        ("auth0|5f7c", "é", True),
        ("", "crm", False),
        ("auth0|5f7c", "é", True),
    ]
    assert shown[1].occurred_at.ToDatetime(tzinfo=UTC) == when


async def test_sessions_are_listed_by_the_bytes_of_their_names(client: palimpsest.Client) -> None:
    names = ["Z", "a", "_", "é", "e\u0301", "😀", "a b", "a%", "auth0|5f7c", "שלום", "~", "a:b"]
    mark = uuid4().hex
    for name in names:
        await client.create_session(f"{name} {mark}")
    stub: Any = session_service_pb2_grpc.SessionServiceStub(client.channel)
    listed: list[str] = []
    token = ""
    while True:
        page = await stub.ListSessions(
            session_service_pb2.ListSessionsRequest(page_size=2, page_token=token)
        )
        listed += [one.id for one in page.sessions if one.id.endswith(mark)]
        token = page.next_page_token
        if not token:
            break
    assert listed == sorted((f"{name} {mark}" for name in names), key=str.encode)
