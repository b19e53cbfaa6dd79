"""The identity of a call, from its headers to what it may do."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import grpc
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import MethodOptions

from palimpsest.v1 import (
    answer_service_pb2,
    billing_service_pb2,
    memories_pb2,
    memory_service_pb2,
    operation_service_pb2,
    rules_pb2,
    session_service_pb2,
)
from service.domain.access.identity import (
    LOCAL_IDENTITY,
    Identity,
    Scope,
    acting_as,
    current_identity,
    may_use_session,
    tenant_mark,
)
from service.domain.values.errors import NotFound, PermissionDenied, Unauthenticated, Unavailable
from service.domain.values.reasons import Reason
from service.rpc.errors import code_of
from service.rpc.interceptors import authentication
from service.rpc.interceptors.authentication import (
    MAX_TOKEN_BYTES,
    Authentication,
    Credentials,
    required_scope,
)
from service.rpc.interceptors.session_limit import OPEN_METHODS, SessionLimit, check_sessions
from service.rpc.pipeline import REGISTER
from storage.engine.errors import Unreachable

METHODS = [
    f"/{service.full_name}/{method.name}"
    for _, service in REGISTER.values()
    for method in service.methods
]
LIMITED = Identity(
    tenant_id=uuid4(),
    principal="key:a",
    scopes=frozenset({Scope.READ, Scope.ASK}),
    session_prefix="user:4",
)


class Known:
    """Verifies one token."""

    async def verify(self, credentials: Credentials) -> Identity | None:
        return LIMITED if credentials.token == "good" else None


def context(*headers: tuple[str, Any]) -> Any:
    return SimpleNamespace(invocation_metadata=lambda: headers, auth_context=dict)


async def identified(*headers: tuple[str, Any], method: str, required: bool = True) -> Identity:
    async with Authentication([Known()], required=required).around(method, None, context(*headers)):
        return current_identity()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_which_scope_it_needs(method: str) -> None:
    found = descriptor_pool.Default().FindMethodByName(method[1:].replace("/", "."))
    assert found.GetOptions().Extensions[rules_pb2.required_scope] != rules_pb2.SCOPE_UNSPECIFIED
    assert required_scope(method) in Scope


def test_the_scopes_are_those_of_the_proto() -> None:
    names = {name.removeprefix("SCOPE_").lower() for name in dict(rules_pb2.Scope.items())}
    assert names == {"unspecified", *Scope}


def test_what_only_reads_needs_no_scope_that_changes_things() -> None:
    for method in METHODS:
        found = descriptor_pool.Default().FindMethodByName(method[1:].replace("/", "."))
        changes_nothing = found.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS
        administers = any(
            one in found.name
            for one in ("Tenant", "ApiKey", "Audit", "Erasure", "Quota", "KeptOut")
        )
        if administers:
            assert required_scope(method) is Scope.ADMIN
            continue
        # It writes that there was an export, and nothing else.
        changes_nothing |= found.name == "ExportSession"
        allowed = {Scope.READ, Scope.ASK} if changes_nothing else set(Scope) - {Scope.READ}
        assert required_scope(method) in allowed, method


@pytest.mark.parametrize("method", METHODS)
async def test_a_call_without_the_scope_is_refused_before_its_message(method: str) -> None:
    scope = required_scope(method)
    if scope in LIMITED.scopes:
        assert await identified(("authorization", "Bearer good"), method=method) == LIMITED
        return
    with pytest.raises(PermissionDenied) as refused:
        await identified(("authorization", "Bearer good"), method=method)
    assert refused.value.reason == "SCOPE_MISSING"
    assert refused.value.metadata == {"scope": scope}
    assert f"the scope {scope}, and the credentials have read, ask" in refused.value.message


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([], "CREDENTIALS_MISSING"),
        (["Bearer unknown"], "CREDENTIALS_INVALID"),
        (["Basic good"], "CREDENTIALS_INVALID"),
        (["good"], "CREDENTIALS_INVALID"),
        (["Bearer"], "CREDENTIALS_INVALID"),
        (["Bearer  "], "CREDENTIALS_INVALID"),
        (["Bearer go od"], "CREDENTIALS_INVALID"),
        (["Bearer göod"], "CREDENTIALS_INVALID"),
        (["Bearer good", "Bearer good"], "CREDENTIALS_INVALID"),
        ([f"Bearer {'x' * MAX_TOKEN_BYTES}"], "CREDENTIALS_INVALID"),
        ([b"Bearer good"], "CREDENTIALS_INVALID"),
    ],
)
async def test_a_call_without_usable_credentials_is_refused(
    headers: Sequence[Any], reason: str
) -> None:
    sent = [("authorization", one) for one in headers]
    with pytest.raises(Unauthenticated) as refused:
        await identified(*sent, method=METHODS[0])
    assert refused.value.reason == reason
    assert "unknown" not in refused.value.message
    assert code_of(refused.value) == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("header", ["Bearer good", "bearer good", "BEARER   good "])
async def test_the_scheme_is_read_as_http_has_it(header: str) -> None:
    method = "/palimpsest.v1.SessionService/GetSession"
    assert await identified(("authorization", header), method=method) == LIMITED


async def test_a_server_without_authentication_has_one_tenant_whatever_is_sent() -> None:
    for headers in ([], [("authorization", "Bearer good")], [("authorization", "nonsense")]):
        found = await identified(*headers, method=METHODS[0], required=False)
        assert found == LOCAL_IDENTITY


class Changing:
    """Verifies every token, and from the second time on as a test says."""

    def __init__(self, *later: Identity | Exception) -> None:
        self.later = list(later)
        self.verified = 0
        self.is_done = asyncio.Event()

    async def verify(self, credentials: Credentials) -> Identity | None:
        self.verified += 1
        if self.verified == 1:
            return LIMITED
        if not self.later:
            self.is_done.set()
            return LIMITED
        found = self.later.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


REVOKED = Unauthenticated(Reason.CREDENTIALS_INVALID, "the key was revoked: use another one")
SUSPENDED = PermissionDenied(Reason.TENANT_SUSPENDED, "the tenant is suspended")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifies the credentials of streams as often as a test says."""
    monkeypatch.setattr(authentication, "MIN_VERIFY_SECONDS", 0.0)


def stream(verifier: Changing, inner: Any, *, required: bool = True) -> asyncio.Task[None]:
    """Starts a stream that a handler serves."""
    interceptor = Authentication([verifier], required=required, seconds=0.001)
    handler: Any = grpc.unary_stream_rpc_method_handler(inner)
    wrapped = interceptor.wrap("/palimpsest.v1.MemoryService/WatchMemory", handler)
    sent = context(("authorization", "Bearer good"))
    return asyncio.get_running_loop().create_task(wrapped.unary_stream(None, sent))


async def forever(_: Any, __: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("later", "error"),
    [
        (REVOKED, REVOKED),
        (SUSPENDED, SUSPENDED),
        (replace(LIMITED, scopes=frozenset({Scope.ASK})), "SCOPE_MISSING"),
        (replace(LIMITED, tenant_id=uuid4()), "CREDENTIALS_INVALID"),
    ],
)
async def test_a_stream_ends_with_its_credentials(later: Any, error: Any) -> None:
    with pytest.raises((Unauthenticated, PermissionDenied)) as refused:
        await stream(Changing(LIMITED, later), forever)
    assert refused.value is error or refused.value.reason == error


@pytest.mark.usefixtures("often")
async def test_a_stream_goes_on_while_nothing_can_be_verified() -> None:
    away = Unavailable(Reason.ISSUER_UNAVAILABLE, "the issuer is away: call again")
    verifier = Changing(away, Unreachable("the database is away"))
    call = stream(verifier, forever)
    await verifier.is_done.wait()
    assert not call.done()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert call.cancelled(), "its own cancellation is no refusal"


@pytest.mark.usefixtures("often")
async def test_nothing_is_verified_after_a_stream() -> None:
    async def refuses(_: Any, __: Any) -> None:
        raise NotFound(Reason.SESSION_NOT_FOUND, "there is none")

    async def ends(_: Any, __: Any) -> None:
        assert current_identity() == LIMITED

    before = asyncio.all_tasks()
    await stream(Changing(), ends)
    with pytest.raises(NotFound):
        await stream(Changing(), refuses)
    assert asyncio.all_tasks() == before


async def test_a_server_without_authentication_verifies_no_stream() -> None:
    before = asyncio.all_tasks()

    async def ends(_: Any, __: Any) -> None:
        assert asyncio.all_tasks() - before == {asyncio.current_task()}

    verifier = Changing()
    await stream(verifier, ends, required=False)
    assert not verifier.verified


async def test_health_is_open() -> None:
    async with Authentication(required=True).around("/grpc.health.v1.Health/Check", None, None):  # type: ignore[arg-type]
        pass


REQUESTS: list[tuple[str, Any, bool]] = [
    ("GetSession", session_service_pb2.GetSessionRequest(session="user:42"), True),
    ("GetSession", session_service_pb2.GetSessionRequest(session="user:5"), False),
    (
        "CreateSession",
        session_service_pb2.CreateSessionRequest(session=session_service_pb2.Session(id="x")),
        False,
    ),
    (
        "CreateMemory",
        memory_service_pb2.CreateMemoryRequest(memory=memories_pb2.Memory(session="x")),
        False,
    ),
    (
        "AskMany",
        answer_service_pb2.AskManyRequest(
            questions=[
                answer_service_pb2.AskRequest(session="user:4"),
                answer_service_pb2.AskRequest(session="other"),
            ]
        ),
        False,
    ),
    (
        "SetBudget",
        billing_service_pb2.SetBudgetRequest(budget=billing_service_pb2.Budget(session="x")),
        False,
    ),
    ("ListUsage", billing_service_pb2.ListUsageRequest(), False),
    ("RetryMemory", memory_service_pb2.RetryMemoryRequest(), False),
    ("ListOperations", operation_service_pb2.ListOperationsRequest(), False),
    ("ListSessions", session_service_pb2.ListSessionsRequest(), True),
]


@pytest.mark.parametrize(("method", "request_", "allowed"), REQUESTS)
def test_a_request_is_about_allowed_sessions_only(
    method: str, request_: Any, allowed: bool
) -> None:
    with acting_as(LIMITED):
        if allowed:
            check_sessions(method, request_)
            return
        with pytest.raises(PermissionDenied) as refused:
            check_sessions(method, request_)
    assert refused.value.reason == "SESSION_NOT_ALLOWED"
    assert refused.value.metadata == {"session_prefix": "user:4"}


def test_only_methods_that_exist_are_open() -> None:
    assert {method.rpartition("/")[2] for method in METHODS} >= OPEN_METHODS


async def test_a_search_that_asks_a_model_needs_the_scope_for_that() -> None:
    reader = Identity(tenant_id=uuid4(), principal="key:a", scopes=frozenset({Scope.READ}))
    method = "/palimpsest.v1.SessionService/SearchChunks"
    for rerank in (False, True):
        wanted = session_service_pb2.SearchChunksRequest(session="s", rerank=rerank)
        with acting_as(reader):
            if rerank:
                with pytest.raises(PermissionDenied, match="the scope ask"):
                    async with SessionLimit().around(method, wanted, context()):
                        pass
            else:
                async with SessionLimit().around(method, wanted, context()):
                    pass


def test_outside_of_calls_nothing_is_limited_and_no_tenant_is_assumed() -> None:
    assert may_use_session("any")
    assert tenant_mark() == ""
    with pytest.raises(LookupError):
        current_identity()
    with acting_as(LIMITED):
        assert not may_use_session("other")
        assert tenant_mark() == f"#{LIMITED.tenant_id.hex}"
    with acting_as(LOCAL_IDENTITY):
        assert tenant_mark() == ""
