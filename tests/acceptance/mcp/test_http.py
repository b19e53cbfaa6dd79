"""The tools for models over HTTP, with the keys, the tenants and the limits of the API."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

import palimpsest
from palimpsest import Edit
from storage.engine.database import Database
from tests.acceptance.access.serving import serving_both
from tests.support.access import operator_key
from tests.support.mcp import LEGACY, MODERN, REMOVED, failed, into, text_of
from tests.support.over_http import over_http

SCHEMA = "class Facts:\n    notes: dict[str, str]\n"
ANY = {"http_listen": "127.0.0.1:0"}
REQUIRED = {**ANY, "authentication": "required"}
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}
HEADERS = {
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": MODERN,
    "mcp-method": "tools/list",
}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}


@asynccontextmanager
async def tools_at(url: str, token: str = "", mode: Any = "auto") -> AsyncIterator[Client]:
    """Yields the official client, with a key."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


@pytest.mark.parametrize("mode", [LEGACY, "auto", MODERN])
async def test_what_is_remembered_over_http_is_read_by_grpc(url: str, mode: str) -> None:
    async with serving_both(url, **ANY) as (address, at):
        async with tools_at(f"{at}/mcp/josé%40example.org/monday", mode=mode) as tools:
            assert [one.name for one in (await tools.list_tools()).tools][:2] == [
                "remember",
                "recall",
            ]
            stored = await tools.call_tool("remember", {"text": "He sails on Mondays."})
            assert text_of(stored) == "Remembered, durably, at position 1."
            found = text_of(await tools.call_tool("recall", {"query": "Mondays"}))
            assert "He sails on Mondays." in found
            assert "position 99" in failed(await tools.call_tool("why", {"position": 99}))
        async with palimpsest.connect(address) as client:
            chunk = await client.session("josé@example.org").chunk(1)
    assert (chunk.text, chunk.thread, chunk.source) == ("He sails on Mondays.", "monday", "mcp")


@asynccontextmanager
async def with_keys(url: str, database: Database) -> AsyncIterator[tuple[str, palimpsest.Access]]:
    """Yields where the tools of a server that requires keys are, and what makes keys."""
    operator = await operator_key(database)
    async with (
        serving_both(url, **REQUIRED) as (address, at),
        palimpsest.connect(address, token=operator) as client,
    ):
        for tenant in ("alpha", "beta"):
            await client.access.create_tenant(tenant)
        yield at, client.access


async def test_a_key_reads_its_tenant_alone(url: str, database: Database) -> None:
    async with with_keys(url, database) as (at, access):
        seen: list[str] = []
        for tenant in ("alpha", "beta", "alpha"):
            made = await access.create_key(["read", "append", "edit"], tenant=tenant)
            async with tools_at(f"{at}/mcp/shared", made.key) as tools:
                found = text_of(await tools.call_tool("recall", {"query": "secret"}))
                seen = [one for one in ("alpha", "beta") if f"The secret of {one}." in found]
                await tools.call_tool("remember", {"text": f"The secret of {tenant}."})
            # What is there is the tenant's own.
            assert seen in ([], [tenant])
    assert seen == ["alpha"]


async def test_scopes_of_a_key_hold_for_tools(url: str, database: Database) -> None:
    async with with_keys(url, database) as (at, access):
        made = await access.create_key(["read"], tenant="alpha", session_prefix="ann")
        async with tools_at(f"{at}/mcp/ann", made.key) as tools:
            assert "Nothing is" in text_of(await tools.call_tool("recall", {"query": "x"}))
            said = failed(await tools.call_tool("remember", {"text": "Something."}))
            assert "append" in said
        async with tools_at(f"{at}/mcp/bob", made.key) as tools:
            said = failed(await tools.call_tool("recall", {"query": "x"}))
            assert "ann" in said


async def test_a_server_that_requires_keys_serves_nothing_without(
    url: str, database: Database
) -> None:
    async with with_keys(url, database) as (at, access), over_http(at) as http:
        for wrong in ({}, {"authorization": "Bearer pk_nobody"}, {"authorization": "Basic x"}):
            refused = await http.post("/mcp/ann", json=LIST, headers={**HEADERS, **wrong})
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert refused.json()["code"] == "unauthenticated"
        made = await access.create_key(["read"], tenant="alpha")
        given = {"authorization": f"Bearer {made.key}"}
        found = await http.post("/mcp/ann", json=LIST, headers={**HEADERS, **given})
        assert found.status_code == 200


async def posted(http: httpx.AsyncClient, content: bytes, **headers: str) -> httpx.Response:
    return await http.post("/mcp/ann", content=content, headers={**HEADERS, **headers})


async def test_the_list_has_the_bytes_of_standard_output(url: str) -> None:
    async with serving_both(url, **ANY) as (_, at), over_http(at) as http:
        one = await posted(http, json.dumps(LIST).encode())
        two = await http.post("/mcp/bob/thread", json=LIST, headers=HEADERS)
    assert one.content == two.content
    assert one.headers["content-type"] == "application/json"
    assert "mcp-session-id" not in one.headers


BEGIN = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}
OLDER = {**HEADERS, "mcp-protocol-version": "2025-11-25"}


async def begun(http: httpx.AsyncClient, path: str, **headers: str) -> dict[str, str]:
    """Returns the headers of a client that has begun a session of the protocol."""
    begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": BEGIN}
    found = await http.post(path, json=begin, headers={**OLDER, **headers})
    assert found.json()["result"]["capabilities"]["resources"]["subscribe"] is True
    return {**OLDER, **headers, "mcp-session-id": found.headers["mcp-session-id"]}


def subscription(uri: str, method: str = "resources/subscribe") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 2, "method": method, "params": {"uri": uri}}


@pytest.mark.filterwarnings(REMOVED)
async def test_a_client_with_a_handshake_subscribes_over_http(url: str) -> None:
    seen = asyncio.Queue[Any]()
    async with serving_both(url, **ANY) as (address, at), palimpsest.connect(address) as client:
        session = await client.create_session("ann")
        memory = await session.create_memory("tea", SCHEMA)
        transport = streamable_http_client(f"{at}/mcp/ann")
        async with Client(transport, mode=LEGACY, message_handler=into(seen)) as tools:
            await tools.subscribe_resource("palimpsest://memories/tea")
            for kind in ("green", "black"):
                await memory.edit([Edit.put("/notes/tea", kind)])
                changed = await seen.get()
                assert changed.params.uri == "palimpsest://memories/tea"
            # A client that reads does not keep a server from stopping: the fixture would hang.


async def test_subscriptions_wait_for_a_client_that_reads_again(url: str) -> None:
    uri = "palimpsest://memories/tea"
    async with (
        serving_both(url, **ANY) as (address, at),
        palimpsest.connect(address) as client,
        over_http(at) as http,
    ):
        session = await client.create_session("ann")
        memory = await session.create_memory("tea", SCHEMA)
        given = await begun(http, "/mcp/ann")
        done = await http.post("/mcp/ann", json=subscription(uri), headers=given)
        assert done.json()["result"] == {}
        for kind in ("green", "black"):
            # Before there is a stream, and after the first has ended.
            await memory.edit([Edit.put("/notes/tea", kind)])
            async with http.stream("GET", "/mcp/ann", headers=given) as stream:
                assert stream.headers["content-type"].startswith("text/event-stream")
                data = [line async for line in until_data(stream)]
                assert json.loads(data[-1][6:])["params"] == {"uri": uri}
        ending = subscription(uri, "resources/unsubscribe")
        ended = await http.post("/mcp/ann", json=ending, headers=given)
        assert ended.json()["result"] == {}


async def until_data(stream: httpx.Response) -> AsyncIterator[str]:
    """Yields the lines of a stream up to the first event."""
    async for line in stream.aiter_lines():
        yield line
        if line.startswith("data: "):
            return


async def test_an_id_is_its_client_s_alone(url: str, database: Database) -> None:
    uri = "palimpsest://memories/tea"
    async with with_keys(url, database) as (at, access), over_http(at) as http:
        one, other = [
            {"authorization": f"Bearer {(await access.create_key(['read'], tenant=name)).key}"}
            for name in ("alpha", "beta")
        ]
        given = await begun(http, "/mcp/ann", **one)
        for path, headers in (("/mcp/ann", other), ("/mcp/bob", one)):
            stolen = {**given, **headers}
            assert (await http.get(path, headers=stolen)).status_code == 405
            refused = await http.post(path, json=subscription(uri), headers=stolen)
            assert "did not begin the session" in refused.json()["error"]["message"]
            # All else is served without it.
            listed = await http.post(path, json=LIST, headers={**HEADERS, **headers})
            assert listed.status_code == 200
        missing = await http.post("/mcp/ann", json=subscription(uri), headers=given)
        assert "no such resource" in missing.json()["error"]["message"]


async def test_requests_that_are_none(url: str) -> None:
    async with serving_both(url, **ANY) as (_, at), over_http(at) as http:
        for path in ("/mcp", "/mcp/", "/mcp/a/b/c", "/mcp//b", "/mcp/%ff", f"/mcp/{'x' * 3000}"):
            found = await http.post(path, json=LIST, headers=HEADERS)
            assert found.status_code == 404, path
            assert "/mcp/SESSION" in found.json()["message"] or "UTF-8" in found.json()["message"]
        for method in ("GET", "DELETE", "PUT"):
            for given in ("", "0" * 96, "x"):
                found = await http.request(
                    method, "/mcp/ann", headers={**HEADERS, "mcp-session-id": given}
                )
                assert (found.status_code, found.headers["allow"]) == (405, "POST")
        too_long = await posted(http, b" " * 1024 * 1024 + b"{}")
        assert (too_long.status_code, "at most 1048576" in too_long.text) == (413, True)
        for content in (b"", b"{", b"[" * 100_000, b"[]", b"5", b'{"jsonrpc": "2.0", "id": {}}'):
            found = await posted(http, content)
            assert found.status_code == 400, content[:20]
            assert found.json()["error"]["code"] in (-32700, -32600)
            assert "Traceback" not in found.text
        call = {**LIST, "method": "tools/call"}
        call["params"] = {"_meta": META, "name": "nothing", "arguments": {}}
        named = {"mcp-method": "tools/call", "mcp-name": "nothing"}
        found = await posted(http, json.dumps(call).encode(), **named)
        assert found.json()["error"]["code"] == -32602


async def test_web_pages_and_other_names_are_refused(url: str) -> None:
    listed = {**ANY, "http_origins": "https://app.example.org"}
    async with serving_both(url, **listed) as (_, at), over_http(at) as http:
        content = json.dumps(LIST).encode()
        for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
            assert (await posted(http, content, **headers)).status_code == 403
        page = {"origin": "https://app.example.org"}
        assert (await posted(http, content, **page)).status_code == 200
        asks = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "mcp-protocol-version,mcp-method,authorization",
        }
        assert (await http.options("/mcp/ann", headers={**page, **asks})).status_code == 200


async def test_tools_are_those_of_the_setting(url: str) -> None:
    async with (
        serving_both(url, **ANY, mcp_tools="list_memories, recall") as (_, at),
        tools_at(f"{at}/mcp/ann") as tools,
    ):
        assert [one.name for one in (await tools.list_tools()).tools] == ["recall", "list_memories"]
        with pytest.raises(MCPError, match="unknown tool"):
            await tools.call_tool("forget", {"positions": [1]})
    async with serving_both(url, **ANY, mcp_tools="") as (_, at), over_http(at) as http:
        assert (await http.post("/mcp/ann", json=LIST, headers=HEADERS)).status_code == 404
    with pytest.raises(ValueError, match="no tool 'forgets'"):
        async with serving_both(url, **ANY, mcp_tools="forgets"):
            pass


async def test_a_change_of_a_memory_is_reported_over_http(url: str) -> None:
    uri = "palimpsest://memories/default"
    async with (
        serving_both(url, **ANY) as (address, at),
        palimpsest.connect(address) as client,
    ):
        session = await client.create_session("ann")
        memory = await session.create_memory("default", SCHEMA)
        async with (
            tools_at(f"{at}/mcp/ann", mode=MODERN) as tools,
            tools.listen(resource_subscriptions=[uri]) as events,
        ):
            seen = asyncio.create_task(anext(aiter(events)))
            while not seen.done():
                await memory.edit([Edit.put("/notes/tea", uuid4().hex)])
                await asyncio.wait([seen], timeout=0.2)
            assert seen.result().uri == uri  # type: ignore[union-attr]
            # A client that listens does not keep a server from stopping: the fixture would hang.
