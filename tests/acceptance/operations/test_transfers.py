"""Exports and imports of sessions, as clients see them."""

import json
from pathlib import Path

import pytest

import palimpsest
from service.app.kinds import use_cases
from service.domain.operations.transfer.records import KINDS
from service.domain.values.tenancy import DEFAULT_TENANT
from service.usecases.operations.verify import LocatedDifference, Verifier
from storage.engine.database import Database
from tests.acceptance.operations.test_verify import fill
from tests.support.fake_embeddings import fake_embeddings
from tests.support.harness import Servers, api, worker

#: What the session does not have.
UNUSED = {"dead_letter", "rejection", "rating", "budget", "redaction"}


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


async def differences(database: Database, session: str) -> list[object]:
    verifier = Verifier(database, use_cases())
    found = verifier.verify(DEFAULT_TENANT, session)
    return [one async for one in found if isinstance(one, LocatedDifference)]


@pytest.mark.prove
async def test_an_imported_session_is_exported_alike(
    servers: Servers, url: str, database: Database, tmp_path: Path
) -> None:
    with fake_embeddings() as embeddings:
        models = {
            "PALIMPSEST_EMBEDDING_MODEL": "openai/fake",
            "PALIMPSEST_EMBEDDING_BASE_URL": embeddings.url,
            "PALIMPSEST_EMBEDDING_API_KEY": "sk-test",
        }
        with api(url, **models) as (_, address), worker(url, **models):
            await fill(address)
            async with palimpsest.connect(address) as client:
                first, second = tmp_path / "first", tmp_path / "second"
                await client.access.set_source_trust("web", "unverified", session="s")
                await client.session("s").export(first)
                copy = await client.import_session(first, "copy")
                await copy.export(second)
                before, after = lines_of(first), lines_of(second)
                assert before[1:] == after[1:]
                assert {json.loads(one)["record"] for one in before} >= KINDS.keys() - UNUSED
                info = await copy.info()
                assert info.imported_from is not None
                assert info.imported_from.session == "s"
                assert await differences(database, "copy") == []
