"""Threads, sources and times of chunks, over gRPC, from the append to search and back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import grpc
import psycopg
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

import palimpsest
from palimpsest.v1 import chunks_pb2, session_service_pb2, session_service_pb2_grpc
from palimpsest.v1alpha1 import search_pb2, search_pb2_grpc, sessions_pb2, sessions_pb2_grpc
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.values.tenancy import DEFAULT_TENANT
from service.rpc.convert import v1alpha1 as convert
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
from tests.support.harness import Servers

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
ODD = tuple(thread for thread, _, _ in SAID if thread)


def at(day: int, nanos: int = 0) -> Timestamp:
    return Timestamp(seconds=day * DAY, nanos=nanos)


@dataclass(frozen=True)
class Site:
    session: str
    log: Any
    search: Any

    async def append(self, *chunks: chunks_pb2.Chunk, **fields: Any) -> Any:
        produced = [
            chunks_pb2.Chunk(chunk=one, producer_sequence=n if "producer_id" in fields else 0)
            for n, one in enumerate(chunks, start=1)
        ]
        request = session_service_pb2.AppendRequest(session=self.session, chunks=produced, **fields)
        return await self.log.Append(request)

    async def listed(self, page_size: int = 0, **wanted: Any) -> list[int]:
        """The positions of all pages."""
        found: list[int] = []
        first = 1
        while first:
            page = await self.log.ListChunks(
                session_service_pb2.ListChunksRequest(
                    session=self.session,
                    from_position=first,
                    page_size=page_size,
                    filter=chunks_pb2.ChunkFilter(**wanted),
                )
            )
            assert not page_size or len(page.chunks) <= page_size
            found += [one.position for one in page.chunks]
            first = page.next_position
        return found

    async def found(self, **wanted: Any) -> list[int]:
        request = search_pb2.SearchChunksRequest(
            session=self.session,
            query="harbour",
            limit=100,
            mode=search_pb2.SEARCH_MODE_WORDS,
            filter=chunks_pb2.ChunkFilter(**wanted),
        )
        answer = await self.search.SearchChunks(request)
        return sorted(one.chunk.position for one in answer.chunks)


def chunk(thread: str, source: str, day: int | None, text: str = "harbour") -> chunks_pb2.Chunk:
    occurred_at = None if day is None else at(day)
    return chunks_pb2.Chunk(text=text, thread=thread, source=source, occurred_at=occurred_at)


@pytest.fixture
async def site(client: palimpsest.Client) -> Site:
    session = await client.create_session(f"user|{uuid4().hex}")
    log = session_service_pb2_grpc.SessionServiceStub(client.channel)
    search = search_pb2_grpc.SearchServiceStub(client.channel)
    made = Site(session.name, log, search)
    await made.append(*(chunk(*said) for said in SAID))
    return made


async def test_what_is_given_comes_back_as_it_was(site: Site) -> None:
    page = await site.log.ListChunks(session_service_pb2.ListChunksRequest(session=site.session))
    assert [one.chunk for one in page.chunks] == [chunk(*said) for said in SAID]
    assert page.next_position == 0


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


async def test_a_filter_that_nothing_fits_is_refused(site: Site) -> None:
    turned = chunks_pb2.ChunkFilter(occurred_after=at(2), occurred_before=at(1))
    many = chunks_pb2.ChunkFilter(threads=[str(n) for n in range(65)])
    for filter_, said in (
        (turned, "filter.occurred_before is 1970-01-02T00:00:00+00:00, before occurred_after"),
        (many, "filter.threads: "),
    ):
        for call in (
            site.log.ListChunks(
                session_service_pb2.ListChunksRequest(session=site.session, filter=filter_)
            ),
            site.search.SearchChunks(
                search_pb2.SearchChunksRequest(
                    session=site.session, query="harbour", filter=filter_
                )
            ),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert said in (caught.value.details() or "")


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
    await site.append(first, producer_id="p")
    await site.append(first, request_id="r")
    ack = await site.append(first, producer_id="p")
    assert ack.ack.through_producer_sequence == 1
    for fields in ({"producer_id": "p"}, {"request_id": "r"}):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await site.append(other, **fields)
        assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS


async def test_a_time_is_kept_in_microseconds(site: Site) -> None:
    given = chunks_pb2.Chunk(text="x", occurred_at=at(-1, 123_456_789))
    first = await site.append(given, producer_id="p")
    position = first.ack.through_position
    # The rest was cut off before the digest was made.
    again = chunks_pb2.Chunk(text="x", occurred_at=at(-1, 123_456_000))
    assert (await site.append(again, producer_id="p")).ack.through_position == position
    page = await site.log.ListChunks(
        session_service_pb2.ListChunksRequest(session=site.session, from_position=position)
    )
    assert page.chunks[0].chunk == again


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
    assert await pages(ChunkFilter(threads=frozenset("b"))) == [([2, 8], 0)]
    assert await pages(ChunkFilter(threads=frozenset("a"))) == [([1, 4, 5], 7), ([7, 11], 0)]
    assert await pages(ChunkFilter(threads=frozenset("ac"))) == [
        ([1, 4], 5),
        ([5, 6, 7], 8),
        ([10, 11], 0),
    ]
    assert await pages(ChunkFilter(threads=frozenset(["", "b"]))) == [
        ([2, 3], 5),
        ([8], 9),
        ([9], 0),
    ]
    assert await pages(ChunkFilter(sources=frozenset("x"))) == [([], 5), ([], 9), ([], 0)]


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
    shown = convert.answer(AskDone(answer=stored, usage=())).citations
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
    stub: Any = sessions_pb2_grpc.SessionServiceStub(client.channel)
    listed: list[str] = []
    token = ""
    while True:
        page = await stub.ListSessions(
            sessions_pb2.ListSessionsRequest(page_size=2, page_token=token)
        )
        listed += [one.name for one in page.sessions if one.name.endswith(mark)]
        token = page.next_page_token
        if not token:
            break
    assert listed == sorted((f"{name} {mark}" for name in names), key=str.encode)


def test_the_release_before_appends_by_its_own_function(servers: Servers, url: str) -> None:
    with psycopg.connect(servers.as_superuser(url)) as connection:
        found = connection.execute(
            "SELECT pronargs FROM pg_proc WHERE proname = 'write_if_unchanged' ORDER BY 1"
        ).fetchall()
    assert found == [(16,), (19,)]
