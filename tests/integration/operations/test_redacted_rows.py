"""What a redaction removes that no provenance connects with a chunk: by time, and by positions."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.log import sessions
from service.usecases.log.wake_ups import WakeUps
from service.usecases.operations import redacting
from service.usecases.operations.redacting import RedactionRequest, Redactor
from storage.engine.database import Database
from storage.log.selecting import Selection
from storage.operations.derived import RedactionRemoval
from tests.integration.support.scripted import ITEM, KEY, MEMORY, Script, make, prism_method
from tests.integration.support.stored_answers import store_question
from tests.integration.support.writing import append_texts, drop_wake_ups
from tests.support.harness import Servers

SECRET = "zanzibar"
TEXTS = ["a twin", "b", f"the {SECRET} code", "d"]


class Rows:
    """A database whose session `s` was filled a day ago, but for what a test adds."""

    def __init__(self, database: Database, admin: psycopg.Connection) -> None:
        self.database = database
        self._admin = admin

    def change(self, statement: str, **values: Any) -> None:
        self._admin.execute(statement.encode(), {"session": KEY, **values})

    def read(self, statement: str) -> Sequence[Any]:
        return [row[0] for row in self._admin.execute(statement.encode()).fetchall()]

    async def answer(
        self, memory: UUID | None, applied: int, *, chosen: int | None = None, done: bool = True
    ) -> UUID:
        """Stores an answer that was asked two days ago, before any chunk."""
        item = await store_question(
            self.database, memory, "q", revision=0, applied_position=applied
        )
        self.change(
            "UPDATE answer SET created_at = now() - interval '2 days',"
            " chosen = %(chosen)s::jsonb WHERE answer_id = %(answer)s",
            answer=item.item_id,
            chosen=None if chosen is None else f'{{"applied_position": {chosen}}}',
        )
        if done:
            self.change(
                "UPDATE answer SET status = 'failed', failure = 'x' WHERE answer_id = %(answer)s",
                answer=item.item_id,
            )
        return item.item_id

    def move(self, answer: UUID, days: int) -> None:
        """Changes when an answer was asked for."""
        self.change(
            "UPDATE answer SET created_at = now() - make_interval(days => %(days)s)"
            " WHERE answer_id = %(answer)s",
            answer=answer,
            days=days,
        )

    async def redact(self) -> None:
        redactor = Redactor(self.database, WakeUps(drop_wake_ups), b"key", max_chunks=9)
        wanted = RedactionRequest(session="s", selection=Selection(text=SECRET))
        assert list((await redactor.redact(DEFAULT_TENANT, wanted)).positions) == [3]


@pytest.fixture
async def rows(database: Database, url: str, servers: Servers) -> Any:
    await make(database, TEXTS)
    await prism_method(database, Script()).drain(ITEM)
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as admin:
        found = Rows(database, admin)
        found.change("UPDATE chunk SET created_at = now() - interval '1 day'")
        yield found


async def test_answers_go_that_may_have_read_the_chunk(rows: Rows) -> None:
    kept = {
        # Asked before the chunk came, and one that read a memory before it.
        await rows.answer(MEMORY, 4),
        (early := await rows.answer(MEMORY, 2)),
        await rows.answer(None, 0, chosen=2),
    }
    rows.move(early, 0)
    gone = {
        # May read anything yet.
        await rows.answer(MEMORY, 0, done=False),
        (log := await rows.answer(None, 0)),
        (later := await rows.answer(MEMORY, 3)),
        await rows.answer(MEMORY, 2, chosen=3),
    }
    rows.move(log, 0)
    rows.move(later, 0)
    assert set(rows.read("SELECT answer_id FROM answer")) == kept | gone
    await rows.redact()
    assert set(rows.read("SELECT answer_id FROM answer")) == kept
    assert rows.read("SELECT removed ->> 'answer' FROM redaction") == ["4"]


async def test_texts_of_requests_letters_and_operations_are_emptied_by_time(rows: Rows) -> None:
    for name, days in (("before", 2), ("since", 0)):
        values = {"name": name, "days": days, "memory": MEMORY, "id": uuid4()}
        rows.change(
            "INSERT INTO request (session_key, tenant_id, request_id, method, digest, response,"
            " created_at) SELECT session_key, tenant_id, %(name)s, 'EditMemory', sha256('x'),"
            " 'zanzibar', now() - make_interval(days => %(days)s) FROM session"
            " WHERE session_key = %(session)s",
            **values,
        )
        rows.change(
            "INSERT INTO dead_letter (session_key, memory_id, letter_id, tenant_id, from_position,"
            " to_position, attempts, cause, resolution, created_at) SELECT session_key,"
            " %(memory)s, %(id)s, tenant_id, 0, 1, 3, %(name)s || ' zanzibar', 'skipped',"
            " now() - make_interval(days => %(days)s) FROM session"
            " WHERE session_key = %(session)s",
            **values,
        )
        rows.change(
            "INSERT INTO operation (session_key, tenant_id, operation_id, kind, memory_id,"
            " memory_name, goal, state, error, ended_at, created_at) SELECT session_key,"
            " tenant_id, %(id)s, 'rebuild', %(memory)s, 'm', 0, 'failed', %(error)s::jsonb, now(),"
            " now() - make_interval(days => %(days)s) FROM session"
            " WHERE session_key = %(session)s",
            error=f'{{"reason": "R", "message": "{name} zanzibar", "metadata": {{}}}}',
            **values,
        )
    rows.change("UPDATE session SET index_failure = 'zanzibar', words_failure = 'zanzibar'")
    rows.change("UPDATE revision SET comment = 'zanzibar' WHERE to_position >= 3")
    await rows.redact()
    assert rows.read(
        "SELECT convert_from(response, 'UTF8') || (digest = sha256('x'))::text FROM request"
        " WHERE method <> 'Append' ORDER BY request_id"
    ) == ["zanzibartrue", "false"]
    assert rows.read("SELECT cause FROM dead_letter ORDER BY cause DESC") == [
        "before zanzibar",
        "[redacted]",
    ]
    assert rows.read("SELECT error ->> 'message' FROM operation WHERE kind = 'rebuild'") == [
        "before zanzibar",
        "[redacted]",
    ]
    assert rows.read("SELECT index_failure || words_failure FROM session") == [""]
    assert not any(rows.read("SELECT comment FROM revision"))


async def test_rows_of_revisions_go_with_the_revisions_that_read_the_chunk(rows: Rows) -> None:
    since = "(SELECT min(revision) FROM revision WHERE to_position >= 3)"
    of = "SELECT session_key, memory_id, tenant_id, revision"
    rows.change(
        "INSERT INTO rejection (session_key, memory_id, tenant_id, revision, ordinal, proposal,"
        f" reason) {of}, 99, CASE WHEN revision >= {since} THEN 'zanzibar' ELSE 'twin' END, ''"
        " FROM revision"
    )
    for table in ("prism_base", "prism_snapshot"):
        rows.change(
            f"INSERT INTO {table} (session_key, memory_id, tenant_id, revision, value)"
            f" {of}, '\"zanzibar\"' FROM revision WHERE revision >= {since}"
            " ON CONFLICT (session_key, memory_id, revision) DO UPDATE SET value = excluded.value"
        )
    await rows.redact()
    assert set(rows.read("SELECT proposal FROM rejection")) == {"twin"}
    for table in ("prism_base", "prism_snapshot"):
        assert not rows.read(f"SELECT value FROM {table} WHERE value LIKE '%zanzibar%'")


async def test_a_memory_keeps_no_letter_and_no_notes_of_what_it_reads_again(rows: Rows) -> None:
    rows.change(
        "INSERT INTO dead_letter (session_key, memory_id, letter_id, tenant_id, from_position,"
        " to_position, attempts, cause, resolution) SELECT session_key, memory_id,"
        " gen_random_uuid(), tenant_id, 2, 4, 3, 'zanzibar', 'skipped' FROM memory"
    )
    rows.change(
        'UPDATE memory SET fold_state = \'{"a": "zanzibar"}\', losses = \'{"a": 1}\','
        " waiting_model = 'zanzibar', waiting_cause = 'zanzibar'"
    )
    await rows.redact()
    assert rows.read("SELECT count(*) FROM dead_letter") == [0]
    notes = "SELECT num_nonnulls(fold_state, losses, waiting_model, waiting_cause) FROM memory"
    assert rows.read(notes) == [0]


async def test_vectors_of_redacted_chunks_are_deleted_at_once(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.change(
        "INSERT INTO chunk_vector (session_key, tenant_id, position, part, model, from_character,"
        " to_character, embedding) SELECT session_key, tenant_id, position, part, 'm', 0, 1, '{1}'"
        " FROM chunk, generate_series(0, 1) AS part"
    )
    monkeypatch.setattr(redacting, "OWN_BATCHES", 0)
    await rows.redact()
    assert rows.read("SELECT DISTINCT position FROM chunk_vector ORDER BY 1") == [1, 2, 4]


async def test_a_removal_waits_for_calls_that_are_being_recorded(
    rows: Rows, url: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redacting, "OWN_BATCHES", 0)
    await rows.redact()
    (redaction,) = rows.read("SELECT redaction_id FROM redaction")
    removal = RedactionRemoval(session_key=KEY, redaction_id=redaction)
    with psycopg.connect(servers.as_superuser(url)) as other:
        # As the ledger does, which saw the memory before it was redacted.
        other.execute("SELECT FROM session FOR KEY SHARE")
        other.execute(
            "INSERT INTO call SELECT (jsonb_populate_record(c, jsonb_build_object('call_id',"
            " gen_random_uuid(), 'reply', 'zanzibar', 'key', '\\x01'))).* FROM call c LIMIT 1"
        )
        removing = asyncio.create_task(
            redacting.remove_redacted(rows.database, DEFAULT_TENANT, removal)
        )
        while not removing.done() and not rows.read("SELECT 1 FROM pg_locks WHERE NOT granted"):
            await asyncio.sleep(0.01)
        other.commit()
    assert await removing is not None
    assert not [one for one in rows.read("SELECT reply FROM call") if one and SECRET in one]


async def test_what_the_receipt_needs_is_recorded(rows: Rows) -> None:
    export = uuid4()
    rows.change(
        "INSERT INTO session_export (session_key, export_id, tenant_id, head, cut)"
        " SELECT session_key, %(export)s, tenant_id, 4, '{}' FROM session",
        export=export,
    )
    await rows.redact()
    (detail,) = rows.read("SELECT detail FROM erasure")
    assert [one["export"] for one in detail["exports"]] == [str(export)]
    assert detail["positions"] == [3]
    (counts,) = rows.read("SELECT counts FROM erasure")
    assert counts["chunk.content"] == 1
    assert counts["call.texts"] >= 1
    assert rows.read("SELECT octet_length(digests) >= 16 FROM erasure") == [True]
    assert rows.read("SELECT completed_at IS NOT NULL FROM erasure") == [True]
    audited = "SELECT details FROM audit_event WHERE action = 'chunks.redact'"
    assert rows.read(audited) == [{"chunks": 1}]


async def test_a_session_counts_its_bytes_without_redacted_ones(
    database: Database, url: str, servers: Servers
) -> None:
    for name in ("s", "same"):
        await sessions.create(database, DEFAULT_TENANT, name, language="english")
    await append_texts(database, "s", TEXTS)
    await append_texts(database, "same", [text for text in TEXTS if SECRET not in text])
    with psycopg.connect(servers.as_superuser(url), autocommit=True) as admin:
        rows = Rows(database, admin)
        before = rows.read("SELECT content_bytes FROM session ORDER BY name")
        assert before[0] > before[1]
        await rows.redact()
        sizes = rows.read("SELECT content_bytes FROM session ORDER BY name")
    assert sizes == [before[1], before[1]]
