"""A server without authentication serves the default tenant, and nothing meant for another."""

from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from palimpsest.v1 import access_service_pb2 as pb
from palimpsest.v1 import session_service_pb2
from storage.engine.database import Database
from tests.acceptance.access.serving import serving
from tests.support.access import Caller, Refused, connected, operator_key

LIST = session_service_pb2.ListSessionsRequest()


@pytest.fixture
async def local(url: str) -> AsyncIterator[Caller]:
    """Yields a client without a key of a server that requires none."""
    async with serving(url, key_cache_seconds=0.001) as address, connected(address) as caller:
        yield caller


async def test_a_key_of_another_tenant_is_refused(local: Caller, database: Database) -> None:
    acme = await local.tenant("acme")
    for key in (acme.token, await operator_key(database), acme.token[:-1], "pk_"):
        with pytest.raises(Refused) as found:
            await local.with_token(key).call("ListSessions", LIST)
        refused = found.value
        assert (refused.code, refused.reason) == ("UNAUTHENTICATED", "CREDENTIALS_INVALID")
        assert refused.metadata == {"cause": "no_authentication"}
        assert "this server has no authentication" in refused.message
        assert "PALIMPSEST_AUTHENTICATION=required" in refused.message
        assert key not in refused.message or key == "pk_"
    # What is no key of ours is of a proxy, or for one.
    for token in (await operator_key(database, "default"), "sk-other", "ey.ey.ey"):
        assert not (await local.with_token(token).call("ListSessions", LIST)).sessions


async def test_the_default_tenant_is_refused_while_it_is_suspended(local: Caller) -> None:
    await local.call("ListSessions", LIST)
    opening = session_service_pb2.AppendChunksRequest.Open(session="a", producer_id="p")
    created = session_service_pb2.CreateSessionRequest(session=session_service_pb2.Session(id="a"))
    await local.call("CreateSession", created)
    mask = FieldMask(paths=["suspended"])
    suspended = pb.Tenant(id="default", suspended=True)
    update = pb.UpdateTenantRequest(tenant=suspended, update_mask=mask)
    stream = local.stream("AppendChunks")
    await stream.write(session_service_pb2.AppendChunksRequest(open=opening))
    await stream.read()
    await local.call("UpdateTenant", update)
    for name, request in (
        ("ListSessions", LIST),
        ("CreateSession", created),
        ("ListApiKeys", pb.ListApiKeysRequest()),
    ):
        with pytest.raises(Refused) as found:
            await local.call(name, request)
        assert (found.value.code, found.value.reason) == ("PERMISSION_DENIED", "TENANT_SUSPENDED")
    assert await stream.code() == grpc.StatusCode.PERMISSION_DENIED
    assert (await local.call("GetTenant", pb.GetTenantRequest())).suspended
    update.tenant.suspended = False
    await local.call("UpdateTenant", update)
    assert [one.id for one in (await local.call("ListSessions", LIST)).sessions] == ["a"]
