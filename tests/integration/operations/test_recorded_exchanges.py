"""Recorded exchanges of what is erased are removed, and those of its twins are not."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from service.app.call_executors import call_executor
from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.domain.values.tenancy import DEFAULT_TENANT
from service.domain.values.work_items import WorkItem, WorkKind
from service.llm.providers import recording
from service.llm.providers.native import NativeAnswer
from service.llm.providers.prices import Prices
from service.llm.providers.transport import LitellmTransport
from service.settings.config import Config
from service.usecases.calls.call_ledger import CallLedger
from service.usecases.log import sessions
from service.usecases.log.wake_ups import WakeUps
from service.usecases.operations.deleting import Deleter, Remover
from service.usecases.operations.recorded_exchanges import RecordedExchanges
from service.usecases.operations.redacting import RedactionRequest, Redactor
from storage.calls.prefix_index import NullPrefixIndex
from storage.engine.database import Database
from storage.log.selecting import Selection
from tests.integration.support.scripted import CONFIG, ITEM, KEY, Script, make, prism_method
from tests.integration.support.writing import append_texts, drop_wake_ups

ASK = ModelRequest(
    purpose=Purpose.REVISE,
    template="t",
    segments=(Segment(kind=SegmentKind.CHUNK, text="the zanzibar code"),),
    max_output_tokens=9,
)


def record(folder: Path, session: UUID, tenant: UUID = DEFAULT_TENANT) -> Path:
    with recording.about(tenant, session):
        return recording.write(folder, model="m", ask=ASK, arguments={}, native=NativeAnswer())


@pytest.fixture
async def recorded(database: Database, tmp_path: Path) -> RecordedExchanges:
    await sessions.create(database, DEFAULT_TENANT, "s", language="english")
    await append_texts(database, "s", ["one", "the zanzibar code"])
    return RecordedExchanges(database, tmp_path, call_seconds=60)


async def test_exchanges_of_a_redacted_session_are_removed(
    database: Database, tmp_path: Path, recorded: RecordedExchanges
) -> None:
    mine, twin, other = (
        record(tmp_path, KEY),
        record(tmp_path, uuid4()),
        record(tmp_path, KEY, uuid4()),
    )
    by_hand = tmp_path / "notes.json"
    by_hand.write_text("x")
    assert await recorded.sweep() == 0, "nothing is erased"
    redactor = Redactor(database, WakeUps(drop_wake_ups), b"key", max_chunks=9)
    wanted = RedactionRequest(session="s", selection=Selection(text="zanzibar"))
    await redactor.redact(DEFAULT_TENANT, wanted)
    # Of a call that was under way, and of one an hour later.
    late = record(tmp_path, KEY)
    stamp, _, rest = late.name.partition("-")
    later = late.with_name(f"{int(stamp) + 3600 * 10**9}-{rest}")
    later.write_text("x")
    assert await recorded.sweep() == 2
    assert not mine.exists()
    assert not late.exists()
    assert all(one.exists() for one in (twin, other, by_hand, later))
    assert await recorded.sweep() == 0


async def test_exchanges_of_a_deleted_session_are_removed_while_rows_are(
    database: Database, tmp_path: Path, recorded: RecordedExchanges
) -> None:
    files = [record(tmp_path, KEY)]
    await Deleter(database, WakeUps(drop_wake_ups)).delete_session(
        DEFAULT_TENANT, "s", allow_missing=False
    )
    assert await recorded.sweep() == 1
    files.append(record(tmp_path, KEY))
    item = WorkItem(kind=WorkKind.REMOVAL, tenant_id=DEFAULT_TENANT, session_key=KEY, item_id=KEY)
    await Remover(database, CONFIG).remove(item)
    assert await recorded.sweep() == 1
    assert not any(one.exists() for one in files)


async def test_a_call_names_its_session(database: Database, tmp_path: Path) -> None:
    await make(database, ["one"])
    files: list[Path] = []

    async def meanwhile() -> None:
        # As the transport writes it, once the model has replied.
        files.append(
            recording.write(tmp_path, model="m", ask=ASK, arguments={}, native=NativeAnswer())
        )

    script = Script()
    script.meanwhile = meanwhile
    await prism_method(database, script).drain(ITEM)
    assert files
    found = recording.recorded_files(tmp_path)
    assert {(one.tenant_id, one.session_key) for one in found} == {(DEFAULT_TENANT, KEY)}
    assert {one.path for one in found} == set(files)
    assert recording.read(files[0]).ask.purpose is Purpose.REVISE


@pytest.mark.usefixtures("recorded")
async def test_a_process_that_records_removes_what_is_erased(
    database: Database, tmp_path: Path
) -> None:
    file = record(tmp_path, KEY)
    deleter = Deleter(database, WakeUps(drop_wake_ups))
    await deleter.delete_session(DEFAULT_TENANT, "s", allow_missing=False)
    config = Config(record=tmp_path)
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        ledger = CallLedger(database, lease_seconds=1)
        call_executor(
            *(config, database, stack, LitellmTransport(config), ledger),
            *(NullPrefixIndex(), Prices(config)),
        )
        while file.exists():
            await asyncio.sleep(0.01)


async def test_a_folder_that_is_not_there_has_no_exchanges(database: Database) -> None:
    gone = Path("/nonexistent/exchanges")
    assert await RecordedExchanges(database, gone, call_seconds=1).sweep() == 0
