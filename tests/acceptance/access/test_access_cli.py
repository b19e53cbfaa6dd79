"""`palimpsest access`, from the first key of a deployment to its audit log, in one process."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import palimpsest
from tests.acceptance.access.serving import serving
from tests.support import forking
from tests.support.harness import Servers


class Cli:
    """The command line of one service."""

    def __init__(self, url: str, address: str) -> None:
        self.address = address
        self.variables = {
            **os.environ,
            "COLUMNS": "300",
            "PALIMPSEST_DATABASE_URL": url,
            "PALIMPSEST_ADDRESS": address,
        }

    async def run(self, *arguments: str, key: str = "") -> Any:
        """Returns the command that has ended."""
        variables = {**self.variables, "PALIMPSEST_TOKEN": key} if key else self.variables
        command = ("access", *arguments)
        return await asyncio.to_thread(forking.run, command, environment=variables, seconds=120)

    async def __call__(self, *arguments: str, key: str = "") -> str:
        """Returns what a command prints that succeeds."""
        done = await self.run(*arguments, key=key)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    async def refused(self, *arguments: str, key: str = "") -> str:
        """Returns the one line of a command that fails."""
        done = await self.run(*arguments, key=key)
        assert done.returncode == 1, done.stdout
        last = str(done.stderr).strip().splitlines()[-1]
        assert last.startswith("error: ")
        return last


@pytest.fixture
async def cli(url: str) -> AsyncIterator[Cli]:
    async with serving(url, authentication="required", key_cache_seconds=0.001) as address:
        yield Cli(url, address)


@pytest.mark.prove
async def test_from_the_first_key_to_a_suspended_tenant(cli: Cli) -> None:
    assert "this server requires authentication" in await cli.refused("tenant", "list")
    operator = (await cli("bootstrap")).strip()
    await cli("tenant", "create", "acme", "--name", "Acme", key=operator)
    made = json.loads(
        await cli(
            *("key", "create", "--tenant", "acme", "--scope", "admin", "--scope", "read"),
            *("--name", "ops", "--days", "30", "--json"),
            key=operator,
        )
    )
    acme = made["key"]
    assert acme.startswith(f"pk_{made['id']}_")
    rotated = (await cli("key", "rotate", made["id"], "--overlap-hours", "1", key=acme)).strip()
    listed = await cli("key", "list", key=rotated)
    assert listed.count("read admin") == 2
    assert "ops" in listed
    assert rotated[20:] not in listed
    assert "revoked" in await cli("key", "revoke", made["id"], key=rotated)
    assert "the key was revoked" in await cli.refused("key", "list", key=acme)
    assert "only administrators of the system" in await cli.refused(
        "tenant", "suspend", "acme", key=rotated
    )
    assert "suspended since" in await cli("tenant", "suspend", "acme", key=operator)
    assert "the tenant is suspended" in await cli.refused("key", "list", key=rotated)
    assert "active" in await cli("tenant", "resume", "acme", key=operator)
    events = await cli("audit", "list", key=rotated)
    for action in ("tenant.create", "key.create", "key.rotate", "key.revoke", "tenant.suspend"):
        assert action in events
    assert "is none of read, append" in await cli.refused(
        "key", "create", "--scope", "all", key=rotated
    )
    assert "there is no tenant 'none'" in await cli.refused("bootstrap", "--tenant", "none")


async def test_a_log_that_was_changed_is_noticed(
    cli: Cli, servers: Servers, url: str, tmp_path: Path
) -> None:
    key = (await cli("bootstrap")).strip()
    for name in "abc":
        await cli("tenant", "create", name, key=key)
    assert "0 events" not in await cli("audit", "verify", key=key)
    head = (await cli("audit", "verify", key=key)).strip().rpartition(" ")[2]
    await cli("key", "create", "--scope", "read", key=key)
    assert "2 events, unchanged" in await cli("audit", "verify", "--expect", head, key=key)
    exported = tmp_path / "log.jsonl"
    exported.write_text(await cli("audit", "export", key=key))
    assert "2 events, unchanged" in await cli("audit", "verify", str(exported))
    lines = exported.read_text().splitlines()
    exported.write_text("\n".join([lines[0].replace("operator", "key:abcd"), *lines[1:]]))
    assert "event 1 was changed" in await cli.refused("audit", "verify", str(exported))
    exported.write_text(lines[1])
    assert "event 1 was changed, or is missing" in await cli.refused(
        "audit", "verify", str(exported)
    )
    refused = await cli.refused("audit", "verify", str(exported), "--expect", "2:abc")
    assert "'2:abc' is no N:DIGEST" in refused
    exported.write_text("{}")
    assert "line 1: is no event" in await cli.refused("audit", "verify", str(exported))
    with psycopg.connect(servers.as_superuser(url)) as admin:
        admin.execute("ALTER TABLE audit_event DISABLE TRIGGER USER")
        admin.execute("ALTER TABLE audit_head DISABLE TRIGGER USER")
        # The newest event of the system tenant is cut off, and the end with it.
        admin.execute("DELETE FROM audit_event WHERE action = 'key.create' AND sequence = 2")
        admin.execute(
            "UPDATE audit_head h SET sequence = 1, digest = e.digest FROM audit_event e"
            " WHERE e.tenant_id = h.tenant_id AND e.sequence = 1 AND h.sequence = 2"
        )
    assert "1 events, unchanged" in await cli("audit", "verify", key=key)
    last = f"2:{json.loads(lines[1])['digest']}"
    assert "it has no event 2:" in await cli.refused("audit", "verify", "--expect", last, key=key)


@pytest.mark.prove
async def test_a_policy_is_shown_and_cleared_only_when_asked(cli: Cli) -> None:
    key = (await cli("bootstrap")).strip()
    await cli("tenant", "create", "acme", key=key)
    assert "acme: all data is kept for ever" in await cli("tenant", "retain", "acme", key=key)
    assert "retain calls: 7 days" in await cli("tenant", "retain", "acme", "calls=7", key=key)
    assert "retain calls: 7 days" in await cli("tenant", "retain", "acme", key=key)
    shown = json.loads(await cli("tenant", "retain", "acme", "--json", key=key))
    assert shown["retention"]["call_days"] == 7
    assert "--clear goes without a policy" in await cli.refused(
        "tenant", "retain", "acme", "calls=8", "--clear", key=key
    )
    assert "retain calls: 7 days" in await cli("tenant", "show", "acme", key=key)
    assert "calls" not in await cli("tenant", "retain", "acme", "--clear", key=key)
    assert "kept for ever" in await cli("tenant", "retain", "acme", key=key)


async def test_the_client_administers(cli: Cli) -> None:
    operator = (await cli("bootstrap")).strip()
    async with palimpsest.connect(cli.address, token=operator) as client:
        access = client.access
        made = await access.create_tenant("acme", display_name="Acme")
        assert await access.create_tenant("acme", exist_ok=True) == made
        with pytest.raises(palimpsest.AlreadyExists):
            await access.create_tenant("acme")
        assert [one.id async for one in access.tenants()] == ["acme", "default", "system"]
        key = await access.create_key(("read", "append", "edit"), tenant="acme")
        assert key.key not in repr(key)
        async with palimpsest.connect(cli.address, token=key.key) as app:
            await app.create_session("s")
            await app.delete_session("s")
            with pytest.raises(palimpsest.PermissionDenied):
                await app.access.tenant()
        (deleted,) = [
            one async for one in access.audit_events(tenant="acme", action="session.delete")
        ]
        assert (deleted.session, deleted.principal) == ("s", f"key:{key.info.id}")
        events = [one async for one in access.audit_events(tenant="acme")]
        sequence, digest = 0, palimpsest.NO_DIGEST
        for one in events:
            assert one.follows(sequence, digest)
            sequence, digest = one.sequence, one.digest
        assert await access.audit_head(tenant="acme") == palimpsest.AuditHead(
            sequence=sequence, digest=digest
        )
        with pytest.raises(ValueError, match="display_name"):
            await access.update_tenant("acme")
        wanted = palimpsest.Retention(answer_days=365, call_days=0)
        assert (await access.update_tenant("acme", retention=wanted)).retention == wanted
        assert (await access.tenant("acme")).retention == wanted
        with pytest.raises(palimpsest.NotFound):
            await access.rotate_key("a" * 16, tenant="acme")
