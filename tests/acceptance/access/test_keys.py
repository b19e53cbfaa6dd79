"""Keys over the API: made, used, rotated, revoked; tenants that are suspended."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from palimpsest.v1 import access_service_pb2 as pb
from palimpsest.v1 import (
    answer_service_pb2,
    billing_service_pb2,
    memories_pb2,
    memory_service_pb2,
    rules_pb2,
    session_service_pb2,
)
from storage.engine.database import Database
from tests.acceptance.access.serving import serving
from tests.support.access import ALL, Caller, Refused, connected, operator_key

LIST = session_service_pb2.ListSessionsRequest()
READ = [rules_pb2.SCOPE_READ]
SCHEMA = "class Notes:\n    a: str | None = None\n"
NOW = {"key_cache_seconds": 0.001}


@pytest.fixture
async def operator(url: str, database: Database) -> AsyncIterator[Caller]:
    """Yields an administrator of the system tenant."""
    async with (
        serving(url, authentication="required", **NOW) as address,
        connected(address, await operator_key(database)) as caller,
    ):
        yield caller


def create(id: str, **fields: Any) -> session_service_pb2.CreateSessionRequest:
    return session_service_pb2.CreateSessionRequest(
        session=session_service_pb2.Session(id=id, **fields)
    )


async def refused(caller: Caller, name: str, request: Any) -> Refused:
    with pytest.raises(Refused) as found:
        await caller.call(name, request)
    return found.value


def moment(after: timedelta) -> Timestamp:
    made = Timestamp()
    made.FromDatetime(datetime.now(UTC) + after)
    return made


async def sessions(caller: Caller) -> list[str]:
    return [one.id for one in (await caller.call("ListSessions", LIST)).sessions]


async def test_a_call_is_its_key_s_tenant_s(operator: Caller) -> None:
    acme, other = await operator.tenant("acme"), await operator.tenant("other")
    await acme.call("CreateSession", create("a"))
    await other.call("CreateSession", create("a", metadata={"of": "other"}))
    await other.call("CreateSession", create("b"))
    assert await sessions(acme) == ["a"]
    assert await sessions(other) == ["a", "b"]
    assert await sessions(operator) == []
    found = await acme.call("GetSession", session_service_pb2.GetSessionRequest(session="a"))
    assert dict(found.metadata) == {}


async def test_credentials_that_are_not_valid_are_refused_with_the_reason(
    operator: Caller,
) -> None:
    made = await operator.key("default")
    wrong = made.key[:-1] + ("a" if made.key[-1] != "a" else "b")
    unknown = await operator.key("default")
    for token, reason, cause in (
        (None, "CREDENTIALS_MISSING", None),
        (wrong, "CREDENTIALS_INVALID", "malformed"),
        (made.key[:40], "CREDENTIALS_INVALID", "malformed"),
        ("eyJhbGciOiJub25lIn0.e30.", "CREDENTIALS_INVALID", "malformed"),
    ):
        found = await refused(operator.with_token(token), "ListSessions", LIST)
        assert (found.code, found.reason) == ("UNAUTHENTICATED", reason)
        assert found.metadata.get("cause") == cause
        assert made.key[20:] not in found.message
    await operator.call(
        "RevokeApiKey", pb.RevokeApiKeyRequest(tenant="default", api_key=unknown.api_key.id)
    )
    found = await refused(operator.with_token(unknown.key), "ListSessions", LIST)
    assert (found.reason, found.metadata["cause"]) == ("CREDENTIALS_INVALID", "revoked")
    assert await sessions(operator.with_token(made.key)) == []


async def test_a_key_does_what_its_scopes_and_its_sessions_allow(operator: Caller) -> None:
    reader = await operator.tenant("acme", [rules_pb2.SCOPE_READ])
    found = await refused(reader, "CreateSession", create("a"))
    assert (found.code, found.reason) == ("PERMISSION_DENIED", "SCOPE_MISSING")
    assert found.metadata == {"scope": "append"}
    whole = await operator.tenant("acme")
    for id in ("user:1|a", "user:2|a"):
        await whole.call("CreateSession", create(id))
    ours = [scope for scope in ALL if scope != rules_pb2.SCOPE_ADMIN]
    limited = await operator.tenant("acme", ours, prefix="user:1|")
    assert await sessions(limited) == ["user:1|a"]
    await limited.call("CreateSession", create("user:1|b"))
    for name, request in (
        ("GetSession", session_service_pb2.GetSessionRequest(session="user:2|a")),
        ("GetSession", session_service_pb2.GetSessionRequest(session="user:2|none")),
        ("CreateSession", create("user:10")),
        (
            "DeleteSession",
            session_service_pb2.DeleteSessionRequest(session="user:1|a", include_imports=True),
        ),
        (
            "RedactChunks",
            session_service_pb2.RedactChunksRequest(
                session="user:1|a", text="abc", include_imports=True
            ),
        ),
        ("ListUsage", billing_service_pb2.ListUsageRequest()),
    ):
        found = await refused(limited, name, request)
        assert found.reason == "SESSION_NOT_ALLOWED", name
    opening = session_service_pb2.AppendChunksRequest.Open(session="user:2|a", producer_id="p")
    stream = session_service_pb2.AppendChunksRequest(open=opening)
    found = await refused(limited, "AppendChunks", stream)
    assert found.reason == "SESSION_NOT_ALLOWED"
    # Not by leaving the first message out, either.
    stream = session_service_pb2.AppendChunksRequest(
        batch=session_service_pb2.AppendChunksRequest.Batch(traceparent="x")
    )
    found = await refused(limited, "AppendChunks", stream)
    assert found.reason == "SESSION_NOT_ALLOWED"
    wanted = session_service_pb2.ImportSessionRequest.Open(session="user:2|b", header=b"{}")
    importing = session_service_pb2.ImportSessionRequest(open=wanted)
    found = await refused(limited, "ImportSession", importing)
    assert found.reason == "SESSION_NOT_ALLOWED"


@pytest.mark.parametrize("ends", ["key", "tenant"])
async def test_a_stream_ends_once_its_key_is_revoked(operator: Caller, ends: str) -> None:
    acme = await operator.tenant("acme")
    await acme.call("CreateSession", create("a"))
    made = await operator.key("acme")
    stream = operator.with_token(made.key).stream("AppendChunks")
    opening = session_service_pb2.AppendChunksRequest.Open(session="a", producer_id="p")
    await stream.write(session_service_pb2.AppendChunksRequest(open=opening))
    await stream.read()
    if ends == "key":
        revoke = pb.RevokeApiKeyRequest(tenant="acme", api_key=made.api_key.id)
        await operator.call("RevokeApiKey", revoke)
    else:
        suspended = pb.Tenant(id="acme", suspended=True)
        await operator.call(
            "UpdateTenant",
            pb.UpdateTenantRequest(tenant=suspended, update_mask=FieldMask(paths=["suspended"])),
        )
    with pytest.raises(aio.AioRpcError) as ended:
        await stream.read()
    reason = "CREDENTIALS_INVALID" if ends == "key" else "TENANT_SUSPENDED"
    assert Refused(ended.value).reason == reason


@pytest.mark.parametrize("method", ["WatchMemory", "Ask"])
async def test_a_stream_of_a_server_ends_once_its_key_is_revoked(
    operator: Caller, method: str
) -> None:
    acme = await operator.tenant("acme")
    await acme.call("CreateSession", create("a"))
    memory = memories_pb2.Memory(session="a", id="m")
    memory.prism.schema_source = SCHEMA
    await acme.call("CreateMemory", memory_service_pb2.CreateMemoryRequest(memory=memory))
    edit = memory_service_pb2.Edit(path="$.a", value_json='"b"')
    edits = memory_service_pb2.EditMemoryRequest(session="a", memory="m", edits=[edit])
    await acme.call("EditMemory", edits)
    made = await operator.key("acme")
    # No worker runs: the answer stays pending.
    requests = {
        "WatchMemory": memory_service_pb2.WatchMemoryRequest(
            session="a", memory="m", after_revision=0
        ),
        "Ask": answer_service_pb2.AskRequest(session="a", memory="m", query="Who?"),
    }
    stream = operator.with_token(made.key).server_stream(method, requests[method])
    assert await stream.read() is not aio.EOF, "it is under way"
    revoke = pb.RevokeApiKeyRequest(tenant="acme", api_key=made.api_key.id)
    await operator.call("RevokeApiKey", revoke)
    with pytest.raises(aio.AioRpcError) as ended:
        await read_to_end(stream)
    assert Refused(ended.value).reason == "CREDENTIALS_INVALID"
    assert Refused(ended.value).metadata["cause"] == "revoked"


async def read_to_end(stream: Any) -> None:
    while await stream.read() is not aio.EOF:
        pass


async def test_a_rotated_key_is_valid_until_its_overlap_ends(operator: Caller) -> None:
    old = await operator.key("default", [rules_pb2.SCOPE_READ], "a")
    rotate = pb.RotateApiKeyRequest(tenant="default", api_key=old.api_key.id)
    new = await operator.call("RotateApiKey", rotate)
    assert new.api_key.replaces == old.api_key.id
    assert list(new.api_key.scopes) == [rules_pb2.SCOPE_READ]
    assert new.api_key.session_prefix == "a"
    for key in (old, new):
        assert await sessions(operator.with_token(key.key)) == []
    rotate.overlap.CopyFrom(Duration())
    await operator.call("RotateApiKey", rotate)
    found = await refused(operator.with_token(old.key), "ListSessions", LIST)
    assert (found.code, found.reason) == ("UNAUTHENTICATED", "CREDENTIALS_EXPIRED")
    assert found.metadata["expired_at"].endswith("Z")
    again = await refused(operator, "RotateApiKey", rotate)
    assert (again.code, again.reason) == ("NOT_FOUND", "KEY_NOT_FOUND")


async def test_a_rotated_key_lives_as_long_as_the_one_before(operator: Caller) -> None:
    wanted = pb.ApiKey(scopes=READ, expires_at=moment(timedelta(days=30)))
    old = await operator.call(
        "CreateApiKey", pb.CreateApiKeyRequest(tenant="default", api_key=wanted)
    )
    rotate = pb.RotateApiKeyRequest(tenant="default", api_key=old.api_key.id)
    new = (await operator.call("RotateApiKey", rotate)).api_key
    lived = new.expires_at.ToDatetime() - new.created_at.ToDatetime()
    assert timedelta(days=30) - lived < timedelta(minutes=5)
    listed = await operator.call("ListApiKeys", pb.ListApiKeysRequest(tenant="default"))
    first = next(one for one in listed.api_keys if one.id == old.api_key.id)
    assert first.expires_at.ToDatetime() - first.created_at.ToDatetime() < timedelta(days=2)
    past = pb.ApiKey(scopes=READ, expires_at=moment(timedelta(seconds=-1)))
    found = await refused(operator, "CreateApiKey", pb.CreateApiKeyRequest(api_key=past))
    assert (found.code, found.reason) == ("INVALID_ARGUMENT", "FIELD_INVALID")


async def test_lists_show_keys_and_never_secrets(operator: Caller, url: str) -> None:
    acme = await operator.tenant("acme")
    made = [await acme.key(scopes=[rules_pb2.SCOPE_READ]) for _ in range(5)]
    ids: list[str] = []
    request = pb.ListApiKeysRequest(page_size=2)
    while True:
        page = await acme.call("ListApiKeys", request)
        ids += [one.id for one in page.api_keys]
        assert all(key.key[20:] not in str(page) for key in made)
        assert {one.tenant for one in page.api_keys} == {"acme"}
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert len(ids) == 6
    assert ids[1:] == [one.api_key.id for one in made]


async def test_a_suspended_tenant_is_refused_until_it_is_resumed(operator: Caller) -> None:
    acme = await operator.tenant("acme")
    await acme.call("CreateSession", create("a"))
    mask = FieldMask(paths=["suspended"])
    update = pb.UpdateTenantRequest(tenant=pb.Tenant(id="acme", suspended=True), update_mask=mask)
    changed = await operator.call("UpdateTenant", update)
    assert changed.suspended
    assert changed.HasField("suspended_at")
    found = await refused(acme, "ListSessions", LIST)
    assert (found.code, found.reason) == ("PERMISSION_DENIED", "TENANT_SUSPENDED")
    update.tenant.suspended = False
    assert not (await operator.call("UpdateTenant", update)).HasField("suspended_at")
    assert await sessions(acme) == ["a"]
    update.tenant.id, update.tenant.suspended = "system", True
    found = await refused(operator, "UpdateTenant", update)
    assert (found.code, found.reason) == ("INVALID_ARGUMENT", "FIELD_INVALID")


async def test_an_update_of_a_tenant_is_recorded_with_its_changes(operator: Caller) -> None:
    acme = await operator.tenant("acme")
    mask = FieldMask(paths=["display_name", "retention"])
    for policy in ({"answer_days": 90, "call_days": 0}, {"answer_days": 30}):
        tenant = pb.Tenant(id="acme", display_name="Acme", retention=policy)  # type: ignore[arg-type]
        await operator.call("UpdateTenant", pb.UpdateTenantRequest(tenant=tenant, update_mask=mask))
    listed = await acme.call("ListAuditEvents", pb.ListAuditEventsRequest(action="tenant.update"))
    newest_last = sorted(listed.events, key=lambda one: one.sequence)
    assert [dict(one.details) for one in newest_last] == [
        {"display_name": "Acme", "retention.answer_days": 90, "retention.call_days": 0},
        {"retention.answer_days": 30, "retention.call_days": "unset"},
    ]


async def test_a_key_of_an_administrator_is_for_all_sessions(operator: Caller) -> None:
    for scopes in ([rules_pb2.SCOPE_ADMIN], [rules_pb2.SCOPE_READ, rules_pb2.SCOPE_ADMIN]):
        wanted = pb.ApiKey(scopes=scopes, session_prefix="user:42|")
        request = pb.CreateApiKeyRequest(tenant="default", api_key=wanted)
        found = await refused(operator, "CreateApiKey", request)
        assert (found.code, found.reason) == ("INVALID_ARGUMENT", "FIELD_INVALID")
        assert "session_prefix: " in found.message
        assert "make one key for administration, and another" in found.message
    listed = await operator.call("ListApiKeys", pb.ListApiKeysRequest(tenant="default"))
    assert not listed.api_keys


async def test_only_administrators_of_the_system_tenant_manage_tenants(operator: Caller) -> None:
    acme, other = await operator.tenant("acme"), await operator.tenant("other")
    for name, request in (
        ("CreateTenant", pb.CreateTenantRequest(tenant=pb.Tenant(id="new"))),
        ("CreateTenant", pb.CreateTenantRequest(tenant=pb.Tenant(id="other"))),
        ("ListTenants", pb.ListTenantsRequest()),
        (
            "UpdateTenant",
            pb.UpdateTenantRequest(
                tenant=pb.Tenant(id="acme"), update_mask=FieldMask(paths=["suspended"])
            ),
        ),
    ):
        found = await refused(acme, name, request)
        assert (found.code, found.reason) == ("PERMISSION_DENIED", "SCOPE_MISSING"), name
        assert found.metadata == {"scope": "admin", "tenant": "system"}
    for tenant in ("other", "none"):
        for name, kind in (
            ("GetTenant", pb.GetTenantRequest),
            ("ListApiKeys", pb.ListApiKeysRequest),
            ("ListAuditEvents", pb.ListAuditEventsRequest),
        ):
            found = await refused(acme, name, kind(tenant=tenant))
            assert (found.code, found.reason) == ("NOT_FOUND", "TENANT_NOT_FOUND"), name
            assert found.metadata == {"tenant": tenant}
    theirs = (await other.key()).api_key.id
    for id in (theirs, "a" * 16):
        found = await refused(acme, "RevokeApiKey", pb.RevokeApiKeyRequest(api_key=id))
        assert (found.code, found.reason) == ("NOT_FOUND", "KEY_NOT_FOUND")
    listed = await operator.call("ListTenants", pb.ListTenantsRequest())
    assert [one.id for one in listed.tenants] == ["acme", "default", "other", "system"]
    own = await acme.call("GetTenant", pb.GetTenantRequest(tenant="acme"))
    assert own.id == "acme"
    exists = await refused(
        operator, "CreateTenant", pb.CreateTenantRequest(tenant=pb.Tenant(id="acme"))
    )
    assert (exists.code, exists.reason) == ("ALREADY_EXISTS", "TENANT_EXISTS")


async def test_the_same_request_again_returns_the_first_result(operator: Caller) -> None:
    request = pb.CreateTenantRequest(tenant=pb.Tenant(id="acme"), request_id="r1")
    first = await operator.call("CreateTenant", request)
    assert await operator.call("CreateTenant", request) == first
    acme = await operator.tenant("acme")
    key = await acme.key()
    revoke = pb.RevokeApiKeyRequest(tenant="acme", api_key=key.api_key.id, request_id="r2")
    revoked = await operator.call("RevokeApiKey", revoke)
    assert revoked.state == pb.ApiKey.STATE_REVOKED
    assert await operator.call("RevokeApiKey", revoke) == revoked


async def test_administration_is_in_the_audit_log_of_its_tenant(operator: Caller) -> None:
    acme = await operator.tenant("acme")
    key = await acme.key()
    await acme.call("RevokeApiKey", pb.RevokeApiKeyRequest(api_key=key.api_key.id))
    found = await acme.call("ListAuditEvents", pb.ListAuditEventsRequest())
    assert [(one.action, one.principal.partition(":")[0]) for one in found.events] == [
        ("tenant.create", "key"),
        ("key.create", "key"),
        ("key.create", "key"),
        ("key.revoke", "key"),
    ]
    assert found.events[2].target == key.api_key.id
    assert key.key[20:] not in str(found)
    assert found.head == 4
    assert found.head_digest == found.events[-1].digest


async def test_the_limit_of_keys(url: str, database: Database) -> None:
    settings = {"authentication": "required", "limits": {"max_keys": 2}}
    async with (
        serving(url, **settings) as address,
        connected(address, await operator_key(database)) as operator,
    ):
        first = await operator.key()
        found = await refused(
            operator, "CreateApiKey", pb.CreateApiKeyRequest(api_key=pb.ApiKey(scopes=READ))
        )
        assert (found.code, found.reason) == ("RESOURCE_EXHAUSTED", "TOO_MANY_KEYS")
        await operator.call("RevokeApiKey", pb.RevokeApiKeyRequest(api_key=first.api_key.id))
        await operator.key()
