"""The published deletion test, whose tables are on docs/results/forgetting.md."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

import palimpsest
from service.domain.log.receipts import from_json
from service.local.binaries import find_postgres
from service.usecases.operations.erasure_verify import ScanTargets, verify
from tests import ROOT
from tests.support.harness import Servers, api, with_database, worker
from verification.forgetting import deletion
from verification.forgetting.deletion import FACT, STEPS, TWIN, Deployment, fill, surfaces, table

pytestmark = [pytest.mark.prove, pytest.mark.timeout(600)]
PAGE = ROOT / "docs/results/forgetting.md"
HEAD = ("artefact", *STEPS, "twin", "result")
PG_DUMP = str(find_postgres() / "pg_dump")


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("journal") / "erasures.journal"


@pytest.fixture(scope="module")
def served(servers: Servers, journal: Path) -> Iterator[tuple[str, str]]:
    url = servers.new_database(kept=True)
    settings = {"PALIMPSEST_ERASURE_JOURNAL": str(journal), **servers.redis_settings()}
    with api(url, **settings) as (_, address), worker(url, **settings):
        yield address, url


def checked(name: str, made: str) -> None:
    """Compares a table with the one on the page; PALIMPSEST_TEST_UPDATE=1 writes it there."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = PAGE.read_text().partition(begin)
    kept, _, after = rest.partition(end)
    if os.environ.get("PALIMPSEST_TEST_UPDATE"):
        PAGE.write_text(f"{before}{begin}\n{made}\n{end}{after}")
    else:
        assert kept.strip() == made.strip(), "PALIMPSEST_TEST_UPDATE=1 writes it"


@pytest.mark.parametrize("mode", ["forget", "session"])
async def test_the_thirteen_steps(
    served: tuple[str, str], servers: Servers, journal: Path, tmp_path: Path, mode: str
) -> None:
    address, url = served
    superuser = servers.as_superuser(url)
    async with palimpsest.connect(address) as client:
        subject = await fill(client, f"{mode}-subject")
        twin = subject if mode == "forget" else await fill_twin(client, f"{mode}-twin")
        # 11: a copy in a second scope, which the deletion does not know.
        exported = tmp_path / "subject.jsonl"
        await subject.export(exported)
        dump = tmp_path / "before.dump"
        backed_up(superuser, dump)

        async def erase(session: palimpsest.Session) -> None:
            if mode == "session":
                await session.delete(reason="asked for")
                await completed(client)
                return
            forgotten = await session.forget(text=FACT, reason="asked for")
            assert forgotten.operation is not None
            await (await client.operation(forgotten.operation.id)).wait(timeout=120)

        matrix = await deletion.run(Deployment(client, superuser, erase), subject, twin)
        rows = matrix.rows()
        checked(f"deletion by {mode}", table(rows, HEAD))
        assert [row for row in rows if row[-1] != "pass"] == []
        others = await others_of(client, servers, url, journal, exported, dump, erase)
        checked(f"beyond the database by {mode}", table(others, ("place", "result", "how")))
        assert [row for row in others if row[1] != "pass"] == []


async def fill_twin(client: palimpsest.Client, name: str) -> palimpsest.Session:
    """Makes a session with the twin alone."""
    parts = tuple(tuple(one for one in part if FACT not in one) for part in deletion.PARTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deletion, "PARTS", parts)
        return await fill(client, name)


def backed_up(url: str, path: Path) -> None:
    command = [PG_DUMP, f"--dbname={url}", "--format=custom", f"--file={path}"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


async def others_of(
    client: palimpsest.Client,
    servers: Servers,
    url: str,
    journal: Path,
    exported: Path,
    dump: Path,
    erase: deletion.Delete,
) -> list[tuple[str, ...]]:
    """Returns a row for each place outside of the tables (steps 9 to 13)."""
    listed = [one async for one in client.access.erasures()]
    receipt = await client.access.erasure_receipt(listed[-1].id)
    parsed = from_json(receipt.json)
    places = list(
        verify(
            parsed,
            FACT,
            ScanTargets(
                database_url=servers.as_superuser(url),
                pg_dump=PG_DUMP,
                redis_url=servers.valkey.url,
                folders=(journal.parent,),
            ),
        )
    )
    rows: list[tuple[str, ...]] = [
        (f"9 {name}", verdict(place.passed), "scanned by the receipt")
        for name, place in zip(("database", "Redis", "journal"), places, strict=True)
    ]
    events = [one async for one in client.access.audit_events()]
    audited = any(one.action in ("session.delete", "chunks.redact") for one in events)
    audited = audited and listed[-1].reason == "asked for" and FACT not in receipt.json
    rows.append(("10 audit log and receipt", verdict(audited), "both name it, without its text"))
    assert deletion.has(exported, FACT)
    names = [one["export"] for one in parsed.body["outside"]["exports"]]
    rows.append(("9 exports made before", verdict(len(names) == 1), "listed, since outside"))
    rows.append(
        (
            "9 a restored backup",
            verdict(await restored(servers, url, dump, journal)),
            "repeated from the journal before it is served",
        )
    )
    is_refused, is_gone = await imported_again(client, exported)
    how = "its import is refused" if is_refused else "its import has tombstones"
    rows.append(("6 an export from before", verdict(is_gone), how))
    if not is_refused:
        # A copy that was there before the deletion.
        second = await fill(client, f"second-{uuid4().hex}")
        exported = exported.with_name("second.jsonl")
        await second.export(exported)
        copy = await imported(client, exported)
        await erase(second)
        listed = [one async for one in client.access.erasures()]
        receipt = await client.access.erasure_receipt(listed[-1].id)
        assert receipt.imported_sessions == (copy.id,)
        for one in receipt.imported_sessions:
            await erase(client.session(one))
        how = "named with the receipt"
    else:
        second = await imported(client, exported, restore_deleted=True)
        exported = exported.with_name("second.jsonl")
        await second.export(exported)
        copy = await imported(client, exported)
        await second.delete(include_imports=True)
        await completed(client)
        how = "deleted with it by include_imports"
    gone = not await surfaces(copy, FACT, "south")
    gone = gone and not deletion.artefacts(servers.as_superuser(url), FACT)
    rows.append(("13 a second scope", verdict(gone), how))
    return rows


async def imported_again(client: palimpsest.Client, exported: Path) -> tuple[bool, bool]:
    """Returns whether an export from before is refused, and whether it has nothing any more."""
    try:
        copy = await client.import_session(exported, f"copy-{uuid4().hex}")
    except palimpsest.InvalidArgument as error:
        assert error.reason == "IMPORT_INVALID"
        assert "the session was deleted at" in str(error)
        return True, True
    is_gone = not await surfaces(copy, FACT, "south")
    await copy.delete()
    return False, is_gone


async def imported(
    client: palimpsest.Client, exported: Path, *, restore_deleted: bool = False
) -> palimpsest.Session:
    name = f"copy-{uuid4().hex}"
    copy = await client.import_session(exported, name, restore_deleted=restore_deleted)
    assert "chunks" in await surfaces(copy, FACT, "south"), "an import is a session of its own"
    return copy


async def completed(client: palimpsest.Client) -> None:
    """Waits until workers have removed the last row of all that was erased."""
    async with asyncio.timeout(120):
        while not all([one.completed_at async for one in client.access.erasures()]):
            await asyncio.sleep(0.1)


def verdict(passed: bool) -> str:
    return "pass" if passed else "FAIL"


async def restored(servers: Servers, url: str, dump: Path, journal: Path) -> bool:
    """Restores the backup beside, starts a server on it, and looks for the fact and the twin."""
    name = f"restored_{uuid4().hex}"
    with psycopg.connect(servers.postgres.superuser_url, autocommit=True) as connection:
        made = sql.SQL("CREATE DATABASE {} TEMPLATE template0 OWNER palimpsest")
        connection.execute(made.format(sql.Identifier(name)))
    other = with_database(url, name)
    deletion.restore(servers.as_superuser(other), dump)
    assert deletion.artefacts(servers.as_superuser(other), FACT), "the backup has it"
    settings = {"PALIMPSEST_ERASURE_JOURNAL": str(journal)}
    with api(other, **settings) as (_, address):
        async with palimpsest.connect(address) as client:
            seen = set()
            for one in [info async for info in client.sessions()]:
                seen |= {chunk.text async for chunk in client.session(one.id).chunks()}
    servers.drop_databases(other)
    return not any(FACT in text for text in seen) and any(TWIN in text for text in seen)
