"""Requests that come again under their id, over gRPC, at real servers on a real database."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from google.protobuf import message_factory
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from grpc import StatusCode, aio

import palimpsest
from palimpsest import _errors
from palimpsest.v1 import (
    access_service_pb2,
    answer_service_pb2,
    billing_service_pb2,
    chunks_pb2,
    memories_pb2,
    memory_service_pb2,
    operation_service_pb2,
    session_service_pb2,
    tree_service_pb2,
)
from service.rpc.interceptors.base import subject_of
from service.rpc.pipeline import REGISTER
from tests.support.harness import Servers, api
from verification.chaos.switches import Action, Switches, environment

SCHEMA = "class Notes:\n    topics: dict[str, str]\n"
MORE = SCHEMA + "    people: list[str]\n"
#: What methods are called that change nothing.
READS = ("Get", "List", "Check", "Search", "Recall", "Diff")


def unary_methods() -> Iterator[Any]:
    for _, service in REGISTER.values():
        for method in service.methods:
            if not (method.client_streaming or method.server_streaming):
                yield method


MUTATING = {one.name: one for one in unary_methods() if not one.name.startswith(READS)}
#: Their responses have a secret, which is stored nowhere.
NOT_REPEATED = {"CreateApiKey", "RotateApiKey"}


def call(channel: aio.Channel, request: Message, timeout: float | None = None) -> Any:
    """Calls the method that takes such a request."""
    name = request.DESCRIPTOR.name.removesuffix("Request")
    method = MUTATING[name]
    response = message_factory.GetMessageClass(method.output_type)
    unary: Any = channel.unary_unary(
        f"/{method.containing_service.full_name}/{name}",
        request_serializer=lambda one: one.SerializeToString(),
        response_deserializer=response.FromString,
    )
    return unary(request, timeout=timeout)


async def refused(awaited: Any) -> palimpsest.PalimpsestError:
    with pytest.raises(aio.AioRpcError) as caught:
        await awaited
    return _errors.from_rpc(caught.value, "test")


def put(session: str, text: str, request_id: str = "") -> memory_service_pb2.EditMemoryRequest:
    """Returns an edit that is a revision each time that it is made."""
    value = f'"{text}"'
    return memory_service_pb2.EditMemoryRequest(
        session=session,
        memory="notes",
        edits=[memory_service_pb2.Edit(path=f"$.topics['{uuid4().hex}']", value_json=value)],
        request_id=request_id,
    )


def created(name: str, request_id: str = "") -> session_service_pb2.CreateSessionRequest:
    return session_service_pb2.CreateSessionRequest(
        session=session_service_pb2.Session(id=name), request_id=request_id
    )


async def prepared(client: palimpsest.Client) -> str:
    """Returns a session with a PRISM memory; its name."""
    session = await client.create_session(f"idempotent-{uuid4().hex}")
    await session.create_memory("notes", SCHEMA)
    return session.id


async def requests_of(client: palimpsest.Client, name: str) -> dict[str, Message]:
    """Returns a request of each mutating method, to be made in this order."""
    session = client.session(name)
    await session.create_tree("book")
    memory: dict[str, Any] = {"session": name, "memory": "notes"}
    await session.append("The ship lies in the harbour.")
    answer = await session.ask("Where is the ship?", memory="notes")
    answered: dict[str, Any] = {"session": name, "answer": answer.id}
    day = billing_service_pb2.BUDGET_PERIOD_DAY
    budget = billing_service_pb2.Budget(session=name, period=day, limit_tokens=10**9)
    good = answer_service_pb2.Rating(verdict=answer_service_pb2.Rating.VERDICT_GOOD)
    consolidated = await call(client.channel, memory_service_pb2.ConsolidateMemoryRequest(**memory))
    requests: list[Message] = [
        created(f"new-{uuid4().hex}"),
        session_service_pb2.UpdateSessionRequest(
            session=session_service_pb2.Session(id=name, metadata={"team": "red"}),
            update_mask=FieldMask(paths=["metadata"]),
        ),
        memory_service_pb2.CreateMemoryRequest(
            memory=memories_pb2.Memory(
                session=name, id="new", prism=memories_pb2.PrismSpec(schema_source=SCHEMA)
            )
        ),
        put(name, "late"),
        memory_service_pb2.FoldMemoryRequest(**memory),
        memory_service_pb2.RollbackMemoryRequest(**memory, revision=0),
        memory_service_pb2.UpdateMemoryRequest(
            memory=memories_pb2.Memory(
                session=name,
                id="notes",
                prism=memories_pb2.PrismSpec(schema_source=MORE, model="offline/extractive"),
            ),
            update_mask=FieldMask(paths=["prism.schema_source", "prism.model"]),
        ),
        memory_service_pb2.ConsolidateMemoryRequest(**memory),
        memory_service_pb2.RetryMemoryRequest(**memory),
        memory_service_pb2.FlushMemoryRequest(**memory),
        memory_service_pb2.RebuildMemoryRequest(
            **memory, new_memory=memories_pb2.Memory(session=name, id="rebuilt")
        ),
        tree_service_pb2.SealTreeRequest(session=name, memory="book"),
        answer_service_pb2.CancelAnswerRequest(**answered),
        answer_service_pb2.RateAnswerRequest(**answered, rating=good),
        billing_service_pb2.SetBudgetRequest(budget=budget),
        billing_service_pb2.DeleteBudgetRequest(session=name, period=day),
        memory_service_pb2.GenerateSchemaRequest(
            session=name, domain="Logs of ships.", example_query="Where is the ship?"
        ),
        operation_service_pb2.CancelOperationRequest(operation=consolidated.id),
        answer_service_pb2.DeleteAnswerRequest(**answered),
        session_service_pb2.RedactChunksRequest(session=name, text="harbour"),
        memory_service_pb2.DeleteMemoryRequest(session=name, memory="new"),
        *await requests_of_access(client, name),
        session_service_pb2.DeleteSessionRequest(session=name),
    ]
    return {one.DESCRIPTOR.name.removesuffix("Request"): one for one in requests}


async def requests_of_access(client: palimpsest.Client, name: str) -> list[Message]:
    issued = await client.access.create_key(["read"])
    tenant = f"tenant-{uuid4().hex}"
    source: dict[str, Any] = {"session": name, "source": "web"}
    await client.session(name).forget(text="nowhere")
    kept_out = await anext(one.id async for one in client.access.kept_out_texts(name))
    return [
        access_service_pb2.CreateTenantRequest(tenant=access_service_pb2.Tenant(id=tenant)),
        access_service_pb2.UpdateTenantRequest(
            tenant=access_service_pb2.Tenant(id=tenant, display_name="Red"),
            update_mask=FieldMask(paths=["display_name"]),
        ),
        access_service_pb2.UpdateQuotaRequest(
            quota=access_service_pb2.Quota(tenant=tenant, requests_per_second=10),
            update_mask=FieldMask(paths=["requests_per_second"]),
        ),
        access_service_pb2.SetSourceTrustRequest(
            **source, trust=chunks_pb2.SOURCE_TRUST_UNVERIFIED
        ),
        access_service_pb2.QuarantineSourceRequest(**source),
        access_service_pb2.ReleaseSourceRequest(**source),
        access_service_pb2.AllowTextRequest(session=name, id=kept_out),
        access_service_pb2.RevokeApiKeyRequest(api_key=issued.info.id),
        access_service_pb2.DeleteTenantRequest(tenant=tenant),
    ]


def test_every_mutating_method_takes_a_request_id() -> None:
    without = {
        name for name, one in MUTATING.items() if "request_id" not in one.input_type.fields_by_name
    }
    assert without == NOT_REPEATED


async def test_the_first_result_is_returned_again(client: Any) -> None:
    session = await prepared(client)
    requests = await requests_of(client, session)
    assert set(requests) == set(MUTATING) - NOT_REPEATED - {"Append"}
    for method, request in requests.items():
        request.request_id = f"of {method} ü {session}"  # type: ignore[attr-defined]
        first = await call(client.channel, request)
        again = await call(client.channel, request)
        assert again == first, method
        # Whatever else comes under that id is refused.
        other: Message = memory_service_pb2.FoldMemoryRequest(session=session, memory="book")
        of_tenant = method == "CreateSession" or method.startswith("Delete")
        if of_tenant or not subject_of(request).session:
            other = created(f"other-{uuid4().hex}")
        other.request_id = request.request_id  # type: ignore[attr-defined]
        error = await refused(call(client.channel, other))
        assert isinstance(error, palimpsest.AlreadyExists)
        assert error.reason == "REQUEST_CONTENT_CHANGED"
        assert error.metadata["method"] == method


async def test_the_result_stays_as_it_was(client: Any) -> None:
    session = await prepared(client)
    sent = put(session, "first", "r")
    first = await call(client.channel, sent)
    await call(client.channel, put(session, "second", "s"))
    assert await call(client.channel, sent) == first
    memory = await client.session(session).memory("notes").get()
    assert (first.memory.revision, memory.revision) == (1, 2)


async def test_without_an_id_each_call_has_its_effect(client: Any) -> None:
    session = await prepared(client)
    request = memory_service_pb2.RollbackMemoryRequest(session=session, memory="notes", revision=0)
    done = [await call(client.channel, request) for _ in range(2)]
    assert [one.revision for one in done] == [1, 2]


async def test_a_refused_request_is_not_remembered(client: Any) -> None:
    session = await prepared(client)
    sent = put(session, "first", "r")
    sent.expected_revision = 7
    assert (await refused(call(client.channel, sent))).reason == "REVISION_CONFLICT"
    sent.expected_revision = 0
    first = await call(client.channel, sent)
    # By now another revision is the newest.
    assert await call(client.channel, sent) == first


async def test_an_id_is_one_of_its_session(client: Any) -> None:
    sessions = [await prepared(client) for _ in range(2)]
    for session in sessions:
        done = await call(client.channel, put(session, session, "r"))
        assert done.memory.session == session


async def test_an_append_and_an_edit_share_the_ids_of_their_session(client: Any) -> None:
    session = client.session(await prepared(client))
    await session.append("text", request_id="a")
    await call(client.channel, put(session.id, "text", "b"))
    edited = await refused(call(client.channel, put(session.id, "text", "a")))
    assert (edited.reason, edited.metadata["method"]) == ("REQUEST_CONTENT_CHANGED", "Append")
    with pytest.raises(palimpsest.AlreadyExists) as caught:
        await session.append("text", request_id="b")
    assert caught.value.metadata["method"] == "EditMemory"


@pytest.mark.parametrize("request_id", ["a\nb", "a\0b", "r" * 129])
async def test_an_id_that_is_none_is_refused(client: Any, request_id: str) -> None:
    error = await refused(call(client.channel, put("s", "text", request_id)))
    assert (error.reason, list(error.fields)) == ("FIELD_INVALID", ["request_id"])


@pytest.mark.prove
async def test_copies_at_two_servers_at_once_take_effect_once(servers: Servers, url: str) -> None:
    with api(url) as (_, one), api(url) as (_, other):
        async with palimpsest.connect(one) as here, palimpsest.connect(other) as there:
            session = await prepared(here)
            channels = [here.channel, there.channel] * 2
            for turn in range(30):
                copies: list[Message] = [
                    put(session, "text", f"edit {turn}"),
                    created(f"s{turn}", f"s {turn}"),
                    memory_service_pb2.CreateMemoryRequest(
                        memory=memories_pb2.Memory(
                            session=session,
                            id=f"m{turn}",
                            state=memories_pb2.StateSpec(task="Find it."),
                        ),
                        request_id=f"m {turn}",
                    ),
                ]
                for copy in copies:
                    done = await asyncio.gather(*(call(one, copy) for one in channels))
                    assert all(one == done[0] for one in done)
            memory = await here.session(session).memory("notes").get()
            assert memory.revision == 30
    with psycopg.connect(servers.as_superuser(url)) as look:
        rows = look.execute(
            "SELECT count(*), bool_and(expires_at - created_at = '24 hours') FROM request"
        )
        assert rows.fetchone() == (90, True)


@pytest.mark.parametrize(
    "point", ["edit.change:statement", "edit.change:commit", "edit.change:committed"]
)
async def test_a_server_that_is_killed_on_the_way_leaves_nothing_lost_or_twice(
    url: str, folder: Path, point: str
) -> None:
    path = folder / "switches"
    switches = Switches(path)
    with api(url, **environment(path)) as (_, address):
        async with palimpsest.connect(address) as client:
            session = await prepared(client)
            sent = put(session, "text", "r")
            switches.set(point, Action.KILL)
            assert isinstance(await refused(call(client.channel, sent)), palimpsest.Unavailable)
    assert switches.counts(point).failed == 1
    switches.close()
    with api(url) as (_, address):
        async with palimpsest.connect(address) as client:
            first = await call(client.channel, sent)
            assert await call(client.channel, sent) == first
            assert (await client.session(session).memory("notes").get()).revision == 1


async def test_a_call_that_broke_off_after_the_commit_is_found(url: str, folder: Path) -> None:
    path = folder / "switches"
    switches = Switches(path)
    with api(url, **environment(path)) as (_, address):
        async with palimpsest.connect(address) as client:
            session = await prepared(client)
            sent = put(session, "text", "r")
            switches.set("edit.change:committed", Action.SLEEP, seconds=2.0)
            with pytest.raises(aio.AioRpcError) as caught:
                await call(client.channel, sent, timeout=1.0)
            assert caught.value.code() is StatusCode.DEADLINE_EXCEEDED
            again = await call(client.channel, sent)
            assert again.memory.revision == 1
            assert (await client.session(session).memory("notes").get()).revision == 1
    switches.close()
