"""`palimpsest access source` and `palimpsest access quota`, as an administrator types them."""

import json

import pytest

import palimpsest
from tests.acceptance.access.serving import serving
from tests.acceptance.access.test_access_cli import Cli

SCHEMA = "class Notes:\n    said: list[str]\n"
LEVELS = "trusted, unverified, blocked, unset"


@pytest.mark.prove
async def test_levels_quarantines_and_releases(url: str) -> None:
    async with serving(url) as address:
        cli = Cli(url, address)
        async with palimpsest.connect(address) as client:
            session = await client.create_session("s", default_memory=False)
            await session.create_memory("m", SCHEMA)
            async with session.producer("p") as producer:
                await producer.append("a text", source="web:x")
        assert (await cli("source", "list")).split() == ["source", "trust", "where"]
        said = await cli("source", "set", "mail", "unverified")
        assert said == "mail is unverified in all sessions\n"
        said = await cli("source", "set", "web:*", "blocked", "--session", "s")
        assert said == "web:* is blocked in session s\n"
        assert await cli("source", "set", "web:*", "unset", "-s", "s")
        assert "is no level: give one of " + LEVELS in await cli.refused(
            "source", "set", "mail", "good"
        )
        assert "there is no session 'none'" in await cli.refused(
            "source", "quarantine", "web:x", "-s", "none"
        )
        said = await cli("source", "quarantine", "web:x", "-s", "s")
        assert said == "web:x is blocked in session s\n", "no memory has read it"
        assert (await cli("source", "pending", "-s", "s")).split() == ["memory"]
        listed = [line.split() for line in (await cli("source", "list", "-s", "s")).splitlines()]
        assert ["web:x", "quarantined", "s"] in listed
        assert ["mail", "unverified", "all", "sessions"] in listed
        rules = [json.loads(line) for line in (await cli("source", "list", "--json")).splitlines()]
        assert [(one["source"], one["trust"]) for one in rules] == [("mail", "unverified")]
        assert "is quarantined" in await cli.refused("source", "set", "web:x", "trusted", "-s", "s")
        done = json.loads(await cli("source", "release", "web:x", "-s", "s", "--json"))
        assert (done["trust"], done["memories"][0]["memory"]) == ("trusted", "m")
        assert "is not quarantined" in await cli.refused("source", "release", "web:x", "-s", "s")


@pytest.mark.prove
async def test_quotas(url: str) -> None:
    async with serving(url, authentication="required", key_cache_seconds=0.001) as address:
        cli = Cli(url, address)
        key = (await cli("bootstrap")).strip()
        await cli("tenant", "create", "acme", key=key)
        of = ("--tenant", "acme")
        said = await cli("quota", "set", *of, "sessions=5", "stored_bytes=1000", key=key)
        assert {"sessions: 5", "stored_bytes: 1000", "memories: not limited"} <= {
            *said.splitlines()
        }
        assert await cli("quota", "show", *of, key=key) == said
        shown = json.loads(await cli("quota", "show", *of, "--json", key=key))
        assert (shown["sessions"], shown["stored_bytes"]) == (5, 1000)
        said = await cli("quota", "set", *of, "sessions=0", "stored_bytes=default", key=key)
        assert {"sessions: not limited", "stored_bytes: not limited"} <= {*said.splitlines()}
        assert "'rows' is none of requests_per_second, " in await cli.refused(
            "quota", "set", *of, "rows=5", key=key
        )
        for wrong in ("sessions", "sessions=-1", "sessions=few", "sessions=٣"):
            said = await cli.refused("quota", "set", *of, wrong, key=key)
            allowed = "a number of at most 18 digits, 0 or more, or `default`: sessions=100"
            assert f"{wrong!r}: give {allowed}" in said
        own = (await cli("key", "create", *of, "--scope", "admin", key=key)).strip()
        assert "only administrators of the system" in await cli.refused(
            "quota", "set", "sessions=9", key=own
        )
