"""Calls within the process: whose they are, how they end, and the trace that they belong to."""

import asyncio
from typing import Any

import grpc
import pytest
from mcp import Client

import palimpsest
from palimpsest.v1 import memory_service_pb2, session_service_pb2
from service.domain.values.errors import Exhausted
from service.domain.values.reasons import Reason
from service.mcp.scope import ToolScope
from service.mcp.server import new_server
from service.rpc.in_process import Caller, InProcessChannel
from service.rpc.interceptors.errors import Errors
from service.rpc.pipeline import Handler
from tests.support.mcp import MODERN, text_of

RECALL = "/palimpsest.v1.SessionService/Recall"
WATCH = "/palimpsest.v1.MemoryService/WatchMemory"
META: Any = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


def channel(*, metadata: Any = (), **handlers: Handler) -> InProcessChannel:
    caller = Caller(peer="ipv4:192.0.2.1:1", metadata=metadata, certificate={})
    paths = {"recall": RECALL, "watch": WATCH}
    wrapped = {paths[name]: Errors().wrap(paths[name], one) for name, one in handlers.items()}
    return InProcessChannel(wrapped, caller)


def unary(work: Any) -> Handler:
    return grpc.stream_unary_rpc_method_handler(work)


async def test_calls_are_those_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_TOKEN", "pk_of_the_server")
    seen: list[Any] = []

    async def recall(_: Any, context: Any) -> session_service_pb2.RecallResponse:
        request = await context.read()
        seen.append((request.session, dict(context.invocation_metadata()), context.peer()))
        return session_service_pb2.RecallResponse(text="It is known.")

    own = [("authorization", "Bearer pk_of_the_caller")]
    client = palimpsest.Client(channel=channel(metadata=own, recall=unary(recall)))
    server = new_server(lambda _: ToolScope(session=client.session("ann")), ("recall",))
    async with Client(server, mode=MODERN) as tools:
        found = await tools.call_tool("recall", {"query": "x"}, meta=META)
    assert "It is known." in text_of(found)
    ((session, metadata, peer),) = seen
    assert (session, peer) == ("ann", "ipv4:192.0.2.1:1")
    assert metadata["authorization"] == "Bearer pk_of_the_caller"
    assert metadata["traceparent"].split("-")[1] == META["traceparent"].split("-")[1]


async def test_errors_have_their_details() -> None:
    async def recall(_: Any, __: Any) -> None:
        raise Exhausted(Reason.TOO_MANY_CALLS, "there are too many calls: call later", {"limit": 1})

    client = palimpsest.Client(channel=channel(recall=unary(recall)), timeout=0.05)
    with pytest.raises(palimpsest.ResourceExhausted, match="call later") as refused:
        await client.session("ann").recall("x")
    assert (refused.value.reason, refused.value.metadata) == ("TOO_MANY_CALLS", {"limit": "1"})


async def test_a_call_ends_at_its_deadline() -> None:
    ended = asyncio.Event()

    async def recall(_: Any, __: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    client = palimpsest.Client(channel=channel(recall=unary(recall)))
    with pytest.raises(palimpsest.DeadlineExceeded):
        await client.session("ann").recall("x", timeout=0.01)
    assert ended.is_set()


async def test_a_stream_is_read_to_its_end_and_cancelled() -> None:
    async def watch(_: Any, context: Any) -> None:
        for number in range(40):
            token = str(number)
            await context.write(memory_service_pb2.WatchMemoryResponse(resume_token=token))
        await asyncio.Event().wait()

    handler: Handler = grpc.stream_stream_rpc_method_handler(watch)
    client = palimpsest.Client(channel=channel(watch=handler))
    async with client.session("ann").memory("m").watch() as watching:
        seen = [(await anext(watching)).resume_token for _ in range(39)]
        assert seen == [str(number) for number in range(1, 40)]
        await watching.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(watching)
