"""`palimpsest mcp`, as a program starts it."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

import palimpsest
from palimpsest import Edit
from tests.acceptance.cli.test_cli import assert_one_clear_line, run
from tests.support.harness import api
from tests.support.mcp import LEGACY, MODERN, REMOVED, failed, into, text_of

COMMAND = ("-m", "service.cli", "mcp")
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


def started(address: str, *arguments: str) -> Any:
    """Returns the transport to a process of the command."""
    given = [*COMMAND, "--address", address, *arguments]
    return stdio_client(
        StdioServerParameters(command=sys.executable, args=given, env={**os.environ})
    )


def replies(address: str, *lines: str, **environment: str) -> list[bytes]:
    """Returns what a process of its own writes: a line for each that it reads."""
    found = []
    with subprocess.Popen(
        [sys.executable, *COMMAND, "--address", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in lines:
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            found.append(process.stdout.readline())
        process.stdin.close()
        assert process.wait() == 0
    return found


def request(number: int, method: str, **params: Any) -> str:
    """Returns a request of the version without a handshake."""
    message = {
        "jsonrpc": "2.0",
        "id": number,
        "method": method,
        "params": {**params, "_meta": META},
    }
    return json.dumps(message)


@pytest.mark.parametrize("mode", [LEGACY, "auto"])
async def test_a_client_starts_it(address: str, mode: str) -> None:
    name = f"stdio-{uuid4().hex}"
    async with Client(started(address, "--session", name), mode=mode) as tools:
        assert "Long-term memory" in (tools.instructions or "")
        stored = await tools.call_tool("remember", {"text": "The key is under the mat."})
        assert text_of(stored) == "Remembered, durably, at position 1."
        found = await tools.call_tool("recall", {"query": "key"})
        assert "The key is under the mat." in text_of(found)


@pytest.mark.filterwarnings(REMOVED)
async def test_a_subscription_lasts_as_long_as_the_process(address: str) -> None:
    name, seen = f"stdio-{uuid4().hex}", asyncio.Queue[Any]()
    async with palimpsest.connect(address) as client:
        session = await client.create_session(name)
        memory = await session.create_memory("tea", "class Facts:\n    tea: str\n")
        transport = started(address, "--session", name)
        async with Client(transport, mode=LEGACY, message_handler=into(seen)) as tools:
            await tools.subscribe_resource("palimpsest://memories/tea")
            for kind in ("green", "black"):
                await memory.edit([Edit.put("/tea", kind)])
                changed = await seen.get()
                assert changed.params.uri == "palimpsest://memories/tea"


def test_the_list_has_the_same_bytes_in_each_process(address: str) -> None:
    asked = request(1, "tools/list")
    (first,) = replies(address, asked, PYTHONHASHSEED="1")
    assert json.loads(first)["result"]["tools"][0]["name"] == "remember"
    # What is no message is skipped, and what follows is served.
    wrong = f'{{"jsonrpc": "2.0", \n{request(2, "nothing")}'
    refused, second = replies(address, wrong, asked, PYTHONHASHSEED="2")
    assert json.loads(refused)["error"]["code"] == -32601
    assert second == first


@pytest.mark.prove
async def test_while_the_service_is_away_tools_say_so(url: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    async with Client(started(address), mode=MODERN) as tools:
        said = failed(await tools.call_tool("recall", {"query": "x"}))
        assert said.startswith(
            f"cannot reach Palimpsest at {address}; start it with `palimpsest up`"
        )
        with api(url, PALIMPSEST_LISTEN=address):
            stored = await tools.call_tool("remember", {"text": "Back again."})
            assert text_of(stored) == "Remembered, durably, at position 1."
        assert "cannot reach" in failed(await tools.call_tool("remember", {"text": "Lost."}))
        with api(url, PALIMPSEST_LISTEN=address):
            found = text_of(await tools.call_tool("recall", {"query": "again"}))
    assert "Back again." in found
    assert "Lost." not in found


def test_a_tool_that_does_not_exist_is_refused() -> None:
    assert_one_clear_line(run("mcp", "--tool", "forgets"), "the tools are remember, recall")
