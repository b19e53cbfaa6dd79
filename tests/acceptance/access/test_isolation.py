"""One tenant learns nothing of another: every method, with every id of it, in every place.

A client of tenant B sends what names something of tenant A, and the same with ids that never
existed. Both have to end alike: in code, text and details, or in the response. And both have to
take the server the same statements, so that the time of a reply says nothing either.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.text_format import MessageToString

import palimpsest
from palimpsest import Client, Session
from palimpsest.v1 import access_service_pb2
from service.domain.values.tenancy import memory_id, session_key
from service.rpc import tree_service
from storage.access.tenants import find as find_tenant
from storage.engine.database import Database
from tests.acceptance.access import matrix
from tests.acceptance.access.serving import serving_both
from tests.acceptance.access.tenant_statements import TenantStatements, statements_of
from tests.support.access import Caller, Refused, connected, operator_key
from tests.support.harness import worker
from tests.support.over_http import HttpCaller, over_http

pytestmark = pytest.mark.prove

#: What no other tenant may ever see.
SECRET = "the-harbour-museum-of-tenant-a"
SCHEMA = "class N:\n    topics: list[str]\n"
#: They create what they name in the client's own tenant, so they are tried last.
CREATORS = ("CreateSession", "ImportSession", "CreateMemory", "CreateTenant")
#: They end with what they are asked for, so that A's own calls come after all others.
DESTROYERS = (
    "DeleteAnswer",
    "DeleteBudget",
    "DeleteMemory",
    "SealTree",
    "RedactChunks",
    "DeleteSession",
    "DeleteTenant",
)
#: How often the statements of two calls are compared: work beside them is not the same each time.
TURNS = 4
#: What differs between any two responses.
TIMES = re.compile(r"(seconds|nanos): \d+")
OF_OPERATORS = ("CreateTenant", "UpdateTenant", "ListTenants", "DeleteTenant", "UpdateQuota")
#: They return what was sent, and no more.
ECHOES = ("SetSourceTrust", "QuarantineSource", "ReleaseSource")
#: How calls end that A may not make, or has made before.
EXPECTED = {
    **dict.fromkeys(OF_OPERATORS, "PERMISSION_DENIED"),
    **dict.fromkeys(("CreateSession", "CreateMemory"), "ALREADY_EXISTS"),
    # It has no lines of an export.
    "ImportSession": "INVALID_ARGUMENT",
}
#: Their page tokens have no effect, or they have one page of the tenant here.
ONE_PAGE = {"ListSources", "ListKeptOutTexts"}
PAGED = {"ListSessions", "ListTenants", "ListApiKeys", "ListAuditEvents"}


@dataclass
class Ids:
    """The ids of one tenant, by their places; and its page tokens by method."""

    values: dict[str, str]
    page_tokens: dict[str, str] = field(default_factory=dict)
    request_ids: dict[str, str] = field(default_factory=dict)


def never_existed() -> Ids:
    """Returns ids of the same form as real ones."""
    other = uuid4()
    return Ids(
        {
            "session": "session-x",
            "memory": "memory-x",
            "other_memory": "memory-y",
            "tree": "tree-x",
            "state": "state-x",
            "answer": str(other),
            "navigated": str(other),
            "operation": other.hex + uuid4().hex,
            "node": "0.9",
            "parent": "0.9",
            "tenant": "tenant-x",
            "api_key": "abcdefgh234567ab",
            "producer_id": "producer-x",
            "thread": "thread-x",
            "source": "source-x",
            "at_least": "A" * 54,
            "etag": "etag-x",
            "erasure": str(other),
            "kept_out": other.hex,
        }
    )


async def populated(address: str, key: str, tenant: str, name: str) -> Ids:
    """Fills a tenant with what has a name in all that it says; returns its ids."""
    async with palimpsest.connect(address, token=key, timeout=120) as client:
        session = await client.create_session(f"session-{name}")
        await client.create_session(f"session-2-{name}")
        for gone in ("gone", "gone-2"):
            await client.create_session(gone)
            await client.delete_session(gone)
        ids = Ids(never_existed().values | {"session": session.id, "tenant": tenant})
        await keep_out(client, session, ids, name)
        await fill(session, ids, name)
        made = await client.access.create_key(["read"])
        await client.set_budget("total", limit_tokens=10**12)
        ids.values |= {"api_key": made.info.id, "thread": f"thread-{name}"}
        ids.values["source"] = f"source-{name}"
    return ids


async def keep_out(client: Client, session: Session, ids: Ids, name: str) -> None:
    """Keeps a text out that no chunk has: the log stays as it is."""
    await session.forget(text=f"{name} has the code 4711.")
    kept = [one async for one in client.access.kept_out_texts(session.id)]
    ids.values["kept_out"] = kept[0].id


async def fill(session: Session, ids: Ids, name: str) -> None:
    prism = await session.create_memory(f"memory-{name}", SCHEMA, chunk_tokens=16)
    other = await session.create_memory(f"memory-2-{name}", SCHEMA)
    tree = await session.create_tree(f"tree-{name}", segment_tokens=64)
    state = await session.create_state(f"state-{name}", period=2)
    lines = [f"{name} number {number} is closed on Mondays." for number in range(12)]
    ack = await session.append(lines, thread=f"thread-{name}")
    await session.append(f"{name} is what a page says.", source=f"source-{name}")
    async with session.producer(f"producer-{name}") as producer:
        await producer.append(f"{name} and one more.")
    await prism.get(fully_applied=True)
    answer = await prism.ask("When is it closed?", after=ack.read_token)
    await prism.ask("What is closed?")
    await session.ask("What is closed?", reader="whole")
    navigated = await tree.ask("What is closed?", after=ack.read_token)
    await prism.set_budget("total", limit_tokens=10**12)
    await prism.set_budget("day", limit_tokens=10**12)
    for _ in range(2):
        await (await prism.consolidate()).wait()
    operation = await other.consolidate()
    await operation.wait()
    ids.values |= {
        "memory": prism.id,
        "other_memory": other.id,
        "tree": tree.id,
        "state": state.id,
        "answer": answer.id,
        "navigated": navigated.id,
        "operation": operation.id,
        "node": "0.1",
        "parent": "0.1",
        "producer_id": f"producer-{name}",
        "at_least": ack.read_token,
    }


def request_of(method: MethodDescriptor, ids: Mapping[str, str], **more: str) -> Message:
    """Returns the request of a method with these ids."""
    given = matrix.filled(matrix.template(method), ids)
    request = ParseDict(given, GetMessageClass(method.input_type)())
    for name, value in more.items():
        setattr(request, name, value)
    return request


async def outcome(caller: Caller, method: MethodDescriptor, request: Message) -> str:
    """Returns all that a client sees of a call, without what differs between any two."""
    try:
        response = await caller.call(method.name, request)
    except Refused as refused:
        details = [MessageToString(one) for one in refused.details]
        return "\n".join([refused.code, refused.message, *details])
    found = response if isinstance(response, list) else [response]
    return TIMES.sub("", "\n".join(["OK", *map(MessageToString, found)]))


def without(said: str, ids: Mapping[str, str], request_id: str = "") -> str:
    """Returns an outcome with the names of places for what was sent in them."""
    for place, value in sorted(ids.items(), key=lambda one: -len(one[1])):
        if value and len(value) > 3:
            said = said.replace(value, f"<{place}>")
    said = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "<uuid>", said)
    return re.sub(r"\b(pk_)?[a-z2-7]{16}(_\w{49})?\b", "<key>", said)


def paged() -> list[MethodDescriptor]:
    """Returns the methods that have page tokens."""
    methods = matrix.methods()
    return [one for one in methods if "page_token" in one.input_type.fields_by_name]


async def take_tokens(caller: Caller, operator: Caller, ids: Ids) -> None:
    """Takes a page token of every list that has one, as A; and tries that it is valid."""
    for method in paged():
        by = operator if method.name in OF_OPERATORS else caller
        request: Any = request_of(method, ids.values)
        if "page_size" in method.input_type.fields_by_name:
            request.page_size = 1
        page = await by.call(method.name, request)
        if page.next_page_token:
            request.page_token = ids.page_tokens[method.name] = page.next_page_token
            await by.call(method.name, request)
    assert {one.name for one in paged()} - set(ids.page_tokens) == ONE_PAGE


@dataclass
class Tenants:
    """A full tenant, its neighbour, and callers."""

    a: Ids
    b: Ids
    as_a: Caller
    as_b: Caller
    b_id: UUID


@pytest.fixture(params=["grpc", "http"])
async def tenants(
    url: str,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Tenants]:
    # A node's text has a second page.
    monkeypatch.setattr(tree_service, "TEXT_BYTES", 64)
    settings = {"authentication": "required", "http_listen": "127.0.0.1:0"}
    async with (
        serving_both(url, **settings) as (address, at),
        connected(address, await operator_key(database)) as operator,
        over_http(at) as http,
    ):
        with worker(url):
            callers, ids = [], []
            for name, text in (("tenant-a", SECRET), ("tenant-b", "own-of-b")):
                caller = await operator.tenant(name)
                callers.append(caller)
                ids.append(await populated(address, caller.token, name, text))
            for caller, of in zip(callers, ids, strict=True):
                erased = await caller.call("ListErasures", access_service_pb2.ListErasuresRequest())
                of.values["erasure"] = erased.erasures[0].id
            await reject(database, ids[0].values)
            await take_tokens(callers[0], operator, ids[0])
            b_id = await id_of(database, "tenant-b")
            if request.param == "http":
                callers = [HttpCaller(one, http) for one in callers]
            yield Tenants(a=ids[0], b=ids[1], as_a=callers[0], as_b=callers[1], b_id=b_id)


async def id_of(database: Database, tenant: str) -> UUID:
    async with database.sweeping() as tx:
        found = await find_tenant(tx, tenant)
    assert found is not None
    return found.tenant_id


async def reject(database: Database, ids: Mapping[str, str]) -> None:
    """Adds rejections to a memory: the offline model proposes nothing that is rejected."""
    tenant_id = await id_of(database, ids["tenant"])
    key = session_key(tenant_id, ids["session"])
    async with database.transaction(tenant_id) as tx:
        await tx.execute(
            "INSERT INTO rejection (session_key, memory_id, tenant_id, revision, ordinal, proposal,"
            " reason)"
            " SELECT session_key, memory_id, tenant_id, revision, n, 'proposal', 'reason'"
            " FROM memory, generate_series(1, 2) n WHERE session_key = %s AND memory_id = %s",
            (key, memory_id(key, ids["memory"])),
        )


async def seen(tenants: Tenants) -> str:
    """Returns what A has: nothing that B tried may change it."""
    found = []
    for name in ("ListSessions", "ListMemories", "ListChunks", "GetAnswer", "GetOperation"):
        method = next(one for one in matrix.methods() if one.name == name)
        found.append(await outcome(tenants.as_a, method, request_of(method, tenants.a.values)))
    return "\n".join(found)


def cases(method: MethodDescriptor) -> list[tuple[str, ...]]:
    """Returns which places have foreign ids: all of them, and each alone among the client's own."""
    found = sorted(matrix.places(matrix.template(method)))
    alone = [(place,) for place in found] if len(found) > 1 else []
    return [tuple(found), *alone] if found else []


async def test_another_tenant_is_as_one_that_never_existed(tenants: Tenants) -> None:
    never, tried, counted = never_existed(), 0, 0
    methods = sorted(matrix.methods(), key=lambda one: one.name in CREATORS)
    before = await seen(tenants)
    with statements_of(tenants.b_id) as sent:
        for method in methods:
            for foreign in cases(method):
                both = [{one: ids.values[one] for one in foreign} for ids in (tenants.a, never)]
                counted += await assert_alike(tenants, sent, method, both)
                tried += 1
    assert tried > 160, f"{len(methods)} methods"
    assert counted > 2 * tried, "their statements are recorded"
    assert await seen(tenants) == before


async def assert_alike(
    tenants: Tenants,
    sent: TenantStatements,
    method: MethodDescriptor,
    both: Sequence[Mapping[str, str]],
) -> int:
    """Compares calls with foreign ids and with others; returns how many statements one ran.

    The second of two calls may have less to do than the first, so each is the first in turn.
    """
    ran: tuple[list[list[str]], list[list[str]]] = ([], [])
    for turn in range(TURNS):
        said = ["", ""]
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            sent.take()
            said[which] = await attempt(tenants, method, both[which])
            ran[which].append(sent.take())
        assert said[0] == said[1], (method.name, [*both[0]])
        if any(one in ran[1] for one in ran[0]):
            return len(ran[0][0])
    raise AssertionError((method.name, [*both[0]], ran[0][0], ran[1][0]))


async def attempt(tenants: Tenants, method: MethodDescriptor, foreign: Mapping[str, str]) -> str:
    """Returns what B sees of a call with foreign ids among its own."""
    ids = {**tenants.b.values, **foreign}
    said = without(await outcome(tenants.as_b, method, request_of(method, ids)), ids)
    assert SECRET not in said, method.name
    return said


async def test_tokens_of_another_tenant_are_as_altered_ones(tenants: Tenants) -> None:
    tried = 0
    for method in paged():
        if method.name in ONE_PAGE:
            continue
        token = tenants.a.page_tokens[method.name]
        # Also by a client whose sessions and memories have the same names.
        for ids in (tenants.b.values, tenants.a.values):
            said = set()
            for sent in (token, "A" * len(token)):
                request = request_of(method, ids, page_token=sent)
                said.add((await outcome(tenants.as_b, method, request)).replace(sent, ""))
            (only,) = said
            assert not only.startswith("OK"), method.name
            assert SECRET not in without(only, ids), method.name
            tried += 1
    assert tried >= 40


async def test_request_ids_of_another_tenant_are_new(tenants: Tenants) -> None:
    """What A did under a request id is neither returned to B, nor keeps B from doing it."""
    tried = 0
    for method in matrix.methods():
        if "request_id" not in method.input_type.fields_by_name or method.name in DESTROYERS:
            continue
        request = request_of(method, tenants.a.values, request_id=f"request-{method.name}")
        done = await outcome(tenants.as_a, method, request)
        said = await outcome(tenants.as_b, method, request)
        assert "REQUEST_CONTENT_CHANGED" not in said, method.name
        # B's own ids are not A's: of what A made B sees nothing.
        assert not said.startswith("OK") or said != done or "<" not in done, method.name
        if method.name not in (*CREATORS, *ECHOES):
            says_something = done.startswith("OK") and done.strip() != "OK"
            assert not says_something or said != done, method.name
        tried += 1
    assert tried >= 20


async def test_lists_without_an_id_show_nothing_of_another_tenant(tenants: Tenants) -> None:
    named = 0
    for method in matrix.methods():
        fields = method.input_type.fields_by_name
        if "page_token" in fields and method.name in PAGED:
            ids = tenants.b.values | dict.fromkeys(matrix.places(matrix.template(method)), "")
            said = await outcome(tenants.as_b, method, request_of(method, ids))
            assert SECRET not in said, method.name
            assert "tenant-a" not in said, method.name
            named += 1
    assert named > 3


async def test_a_s_own_calls_succeed(tenants: Tenants) -> None:
    """The same requests are right where the ids are the client's own: the tests above try them."""
    late = [*CREATORS, *DESTROYERS]
    methods = sorted(
        matrix.methods(),
        key=lambda one: late.index(one.name) if one.name in late else -1,
    )
    failed = {}
    for method in methods:
        said = await outcome(tenants.as_a, method, request_of(method, tenants.a.values))
        code = said.partition("\n")[0]
        if code not in ("OK", "DEADLINE_EXCEEDED"):
            failed[method.name] = code
    assert failed == EXPECTED
