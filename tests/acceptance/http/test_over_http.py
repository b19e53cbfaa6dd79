"""The API over HTTP, as its clients and its attackers see it."""

import asyncio
import gzip
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf import json_format

import palimpsest
from palimpsest.v1 import session_service_pb2 as pb
from service.app.foundation import CannotStart
from storage.engine.database import Database
from tests.acceptance.access.serving import serving_both
from tests.support.access import operator_key
from tests.support.certificates import Authority
from tests.support.harness import worker
from tests.support.over_http import enveloped, envelopes, over_http

SESSIONS = "/palimpsest.v1.SessionService"
ANSWERS = "/palimpsest.v1.AnswerService"
JSON = {"content-type": "application/json"}
ANY = {"http_listen": "127.0.0.1:0"}
AUTHORITY = Authority()


@dataclass
class Served:
    """A server, and a client of it over HTTP."""

    address: str
    url: str
    http: httpx.AsyncClient

    async def call(self, method: str, request: Mapping[str, Any], **headers: str) -> httpx.Response:
        """Returns the response of a method to JSON."""
        content = json.dumps(request).encode()
        return await self.http.post(method, content=content, headers={**JSON, **headers})


@pytest.fixture
async def served(url: str) -> AsyncIterator[Served]:
    async with serving_both(url, **ANY) as (address, at), over_http(at) as http:
        yield Served(address=address, url=at, http=http)


def reason_of(response: httpx.Response) -> str:
    """Returns the reason of an error."""
    (info,) = [one for one in response.json()["details"] if one["type"].endswith("ErrorInfo")]
    return str(info["debug"]["reason"])


async def test_what_is_written_over_http_is_read_by_grpc(served: Served) -> None:
    made = await served.call(f"{SESSIONS}/CreateSession", {"session": {"id": "alice"}})
    assert (made.status_code, made.json()["id"]) == (200, "alice")
    assert made.headers["cache-control"] == "no-store"
    chunks = {"session": "alice", "requestId": "1", "chunks": [{"text": "No nuts."}]}
    first = await served.call(f"{SESSIONS}/Append", chunks)
    again = await served.call(f"{SESSIONS}/Append", chunks)
    assert first.json()["positions"] == again.json()["positions"] == {"first": "1", "last": "1"}
    async with palimpsest.connect(served.address) as client:
        listed = [one.text async for one in client.session("alice").chunks()]
    assert listed == ["No nuts."]


async def test_protobuf_and_gzip(served: Served) -> None:
    message = pb.CreateSessionRequest(session=pb.Session(id="b", metadata={"k": "v" * 1000}))
    content = gzip.compress(message.SerializeToString())
    headers = {"content-type": "application/proto", "content-encoding": "gzip"}
    made = await served.http.post(f"{SESSIONS}/CreateSession", content=content, headers=headers)
    assert made.headers["content-encoding"] == "gzip"
    assert pb.Session.FromString(made.content).metadata["k"] == "v" * 1000
    plain = {**headers, "accept-encoding": "identity"}
    again = await served.http.post(f"{SESSIONS}/CreateSession", content=content, headers=plain)
    assert (again.status_code, reason_of(again)) == (409, "SESSION_EXISTS")


async def test_reads_also_by_get(served: Served) -> None:
    await served.call(f"{SESSIONS}/CreateSession", {"session": {"id": "a"}})
    got = await served.http.get(f"{SESSIONS}/GetSession", params={"message": '{"session": "a"}'})
    assert (got.status_code, got.json()["id"]) == (200, "a")
    written = await served.http.get(f"{SESSIONS}/CreateSession", params={"message": "{}"})
    assert (written.status_code, written.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("path", "headers", "content", "status", "said"),
    [
        ("/", JSON, "{}", 404, "/openapi.json"),
        (f"{SESSIONS}/Nothing", JSON, "{}", 404, "no such method"),
        (f"{SESSIONS}/GetSession", {}, "{}", 415, "content-type: application/json"),
        (f"{ANSWERS}/Ask", {}, "{}", 415, "application/json for events"),
        (f"{SESSIONS}/AppendChunks", JSON, "{}", 501, "SessionService/Append"),
        (f"{SESSIONS}/GetSession", JSON, "{", 400, "no JSON"),
        (f"{SESSIONS}/GetSession", JSON, "[]", 400, "has to be an object"),
        (f"{SESSIONS}/GetSession", JSON, '{"sesion": "a"}', 400, "sesion"),
        (f"{SESSIONS}/GetSession", JSON, '{"session": "a/b"}', 400, "session: must be printable"),
        (f"{SESSIONS}/GetSession", JSON, '{"session": "bob"}', 404, "no session 'bob'"),
        (f"{SESSIONS}/GetSession", JSON | {"connect-timeout-ms": "soon"}, "{}", 400, "digits"),
        (f"{SESSIONS}/GetSession", JSON | {"content-encoding": "br"}, "{}", 501, "use gzip"),
        (f"{SESSIONS}/GetSession", JSON, '{"session":' + "[" * 100_000, 400, "recursion"),
    ],
)
async def test_bad_requests_get_one_clear_error(
    served: Served, path: str, headers: dict[str, str], content: str, status: int, said: str
) -> None:
    refused = await served.http.post(path, content=content, headers=headers)
    assert (refused.status_code, refused.headers["content-type"]) == (status, "application/json")
    assert said in refused.json()["message"]


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        (b"GET /openapi.json NOTHTTP\r\n\r\n", 400, "mend the client"),
        (b"GET /?message=" + b"a" * 300_000 + b" HTTP/1.1\r\n\r\n", 431, "by POST"),
    ],
)
async def test_heads_that_cannot_be_read_get_an_error(
    served: Served, sent: bytes, status: int, said: str
) -> None:
    reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
    writer.write(sent)
    head, _, content = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert int(head.split()[1]) == status
    assert said in json.loads(content)["message"]


async def test_messages_have_the_limit_that_they_have_in_grpc(url: str) -> None:
    limits = {"max_message_bytes": 100_000}
    async with serving_both(url, **ANY, limits=limits) as (_, at), over_http(at) as http:
        for content, more in (
            (b'{"session": "' + b"a" * 200_000 + b'"}', {}),
            (gzip.compress(bytes(10**8)), {"content-encoding": "gzip"}),
        ):
            refused = await http.post(
                f"{SESSIONS}/GetSession", content=content, headers={**JSON, **more}
            )
            assert refused.status_code == 429
            assert "100000 bytes (max_message_bytes)" in refused.json()["message"]


async def test_an_answer_is_streamed_as_events(url: str, served: Served) -> None:
    await served.call(f"{SESSIONS}/CreateSession", {"session": {"id": "a"}})
    chunks = [{"text": "The harbour museum is closed on Mondays."}]
    await served.call(f"{SESSIONS}/Append", {"session": "a", "chunks": chunks})
    asked = {"session": "a", "query": "When is the museum closed?", "reader": "READER_WHOLE"}
    with worker(url):
        found = await served.call(f"{ANSWERS}/Ask", asked, accept="text/event-stream")
        connect = await served.http.post(
            f"{ANSWERS}/Ask",
            content=enveloped(json.dumps(asked).encode()),
            headers={"content-type": "application/connect+json"},
        )
    assert found.headers["content-type"].startswith("text/event-stream")
    events = [one.splitlines() for one in found.text.strip().split("\n\n")]
    assert events[-1] == ["event: end", "data: {}"]
    last = json.loads(events[-2][0].removeprefix("data: "))
    assert "Mondays" in last["answer"]["text"]
    *messages, (flags, end) = envelopes(connect.content)
    assert (flags, end) == (2, b"{}")
    assert "Mondays" in json.loads(messages[-1][1])["answer"]["text"]


async def test_errors_of_streams(served: Served) -> None:
    asked = {"session": "bob", "query": "What?"}
    events = await served.call(f"{ANSWERS}/Ask", asked, accept="text/event-stream")
    assert (events.status_code, reason_of(events)) == (404, "SESSION_NOT_FOUND")
    for content, said in (
        (enveloped(json.dumps(asked).encode()), "no session"),
        (enveloped(b"{}")[:-1], "ends within an envelope"),
        (b"\x00\x00", "ends within an envelope"),
        (b"\x08\x00\x00\x00\x00", "unknown flags"),
        (b"\x00\xff\xff\xff\xff", "max_message_bytes"),
        (enveloped(b"{}") * 2, "one message"),
        (b"", "no envelope"),
    ):
        ended = await served.http.post(
            f"{ANSWERS}/Ask",
            content=content,
            headers={"content-type": "application/connect+json"},
        )
        ((flags, end),) = envelopes(ended.content)
        assert (ended.status_code, flags) == (200, 2)
        assert said in json.loads(end)["error"]["message"]


async def test_a_deadline_ends_a_call(served: Served) -> None:
    await served.call(f"{SESSIONS}/CreateSession", {"session": {"id": "a"}})
    made = {
        "memory": {"session": "a", "id": "m", "prism": {"schemaSource": "class N:\n    a: str\n"}}
    }
    await served.call("/palimpsest.v1.MemoryService/CreateMemory", made)
    await served.call(f"{SESSIONS}/Append", {"session": "a", "chunks": [{"text": "One."}]})
    # No worker applies it.
    wanted = {"session": "a", "memory": "m", "consistency": {"fullyApplied": True}}
    late = await served.call(
        "/palimpsest.v1.MemoryService/GetMemory", wanted, **{"connect-timeout-ms": "300"}
    )
    assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")


async def test_a_client_that_is_gone_gives_its_slot_back(url: str) -> None:
    limits = {"max_calls": 1}
    async with serving_both(url, **ANY, limits=limits) as (_, at), over_http(at) as http:
        await http.post(f"{SESSIONS}/CreateSession", json={"session": {"id": "a"}})
        made = {"session": "a", "id": "m", "prism": {"schemaSource": "class N:\n    a: str\n"}}
        await http.post("/palimpsest.v1.MemoryService/CreateMemory", json={"memory": made})
        await http.post(f"{SESSIONS}/Append", json={"session": "a", "chunks": [{"text": "One."}]})
        wanted = {"session": "a", "memory": "m", "consistency": {"fullyApplied": True}}
        get = {"session": "a"}
        waiting = None
        while (await http.post(f"{SESSIONS}/GetSession", json=get)).status_code != 429:
            if waiting is None or waiting.done():
                # The other call had the slot.
                waiting = asyncio.create_task(
                    http.post("/palimpsest.v1.MemoryService/GetMemory", json=wanted)
                )
            await asyncio.sleep(0.01)
        assert waiting is not None
        waiting.cancel()
        while (await http.post(f"{SESSIONS}/GetSession", json=get)).status_code != 200:
            await asyncio.sleep(0.01)


async def test_keys_are_needed_where_they_are_required(url: str, database: Database) -> None:
    settings = {**ANY, "authentication": "required"}
    async with serving_both(url, **settings) as (_, at), over_http(at) as http:
        refused = await http.post(f"{SESSIONS}/ListSessions", json={})
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert reason_of(refused) == "CREDENTIALS_MISSING"
        key = await operator_key(database, "default")
        for sent, status in ((f"Bearer {key}", 200), (f"bearer {key}", 200), ("Bearer x", 401)):
            found = await http.post(
                f"{SESSIONS}/ListSessions", json={}, headers={"authorization": sent}
            )
            assert found.status_code == status


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Returns whether the server closes a connection without a word."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_no_body_is_read_of_a_client_without_credentials(url: str) -> None:
    async with serving_both(url, **ANY, authentication="required") as (_, at):
        reader, writer = await asyncio.open_connection(*at.removeprefix("http://").split(":"))
        head = f"POST {SESSIONS}/Append HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: 1000000\r\n\r\n".encode())
        assert b" 401 " in await reader.readline()
        writer.close()


@pytest.mark.parametrize("sent", ["", "POST / HTTP/1.1\r\n", "GET /" + "a" * 100])
async def test_heads_have_a_time(url: str, sent: str) -> None:
    async with serving_both(url, **ANY, limits={"message_seconds": 1}) as (_, at):
        reader, writer = await asyncio.open_connection(*at.removeprefix("http://").split(":"))
        writer.write(sent.encode())
        assert await is_closed(reader)
        writer.close()


async def test_incomplete_bodies_have_a_time(url: str) -> None:
    async with serving_both(url, **ANY, limits={"message_seconds": 1}) as (_, at):
        reader, writer = await asyncio.open_connection(*at.removeprefix("http://").split(":"))
        head = f"POST {SESSIONS}/GetSession HTTP/1.1\r\nhost: localhost\r\n"
        head += "content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        writer.write(head.encode())
        assert b" 504 " in await reader.readline()
        writer.close()


async def test_connections_have_a_limit(url: str) -> None:
    async with serving_both(url, **ANY, limits={"max_connections": 2}) as (_, at):
        place = at.removeprefix("http://").split(":")
        opened = [await asyncio.open_connection(*place) for _ in range(2)]
        reader, writer = await asyncio.open_connection(*place)
        assert await is_closed(reader)
        for _, one in [*opened, (reader, writer)]:
            one.close()


async def test_without_keys_only_this_machine_s_own_names_are_served(served: Served) -> None:
    for host, status in (
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:50080", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost@evil.example", 403),
        ("", 403),
    ):
        found = await served.call(f"{SESSIONS}/ListSessions", {}, host=host)
        assert found.status_code == status, host


async def test_web_pages_need_to_be_listed(url: str, served: Served) -> None:
    refused = await served.call(f"{SESSIONS}/ListSessions", {}, origin="https://evil.example")
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    assert "access-control-allow-origin" not in refused.headers
    listed = {**ANY, "http_origins": "https://app.example.org"}
    async with serving_both(url, **listed) as (_, at), over_http(at) as http:
        asks = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, content-encoding, last-event-id",
        }
        for origin, status in (("https://app.example.org", 200), ("https://evil.example", 400)):
            allowed = await http.options(
                f"{SESSIONS}/ListSessions", headers={"origin": origin, **asks}
            )
            assert allowed.status_code == status
        page = {"origin": "https://app.example.org"}
        found = await http.post(f"{SESSIONS}/ListSessions", json={}, headers=page)
        assert found.headers["access-control-allow-origin"] == "https://app.example.org"
        page = {"origin": "https://evil.example"}
        found = await http.post(f"{SESSIONS}/ListSessions", json={}, headers=page)
        assert found.status_code == 403
    with pytest.raises(ValueError, match="is no origin"):
        async with serving_both(url, **ANY, http_origins="app.example.org"):
            pass


async def test_the_openapi_document_is_served(served: Served) -> None:
    found = await served.http.get("/openapi.json")
    assert found.json()["openapi"] == "3.1.0"
    assert f"{SESSIONS}/Recall" in found.json()["paths"]
    assert found.headers["content-encoding"] == "gzip"
    whole = await served.http.get("/openapi.json", headers={"accept-encoding": "identity"})
    assert whole.content == found.content
    assert "accept-encoding" in whole.headers["vary"]
    assert "content-encoding" not in whole.headers
    head = await served.http.head("/openapi.json", headers={"accept-encoding": "identity"})
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.content))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", f"{SESSIONS}/Nothing", 404),
        ("HEAD", f"{SESSIONS}/GetSession", 405),
        ("OPTIONS", f"{SESSIONS}/GetSession", 405),
        ("PUT", f"{SESSIONS}/Append", 405),
        ("DELETE", "/openapi.json", 404),
        ("POST", f"{SESSIONS}/GetSession", 415),
        ("GET", f"{SESSIONS}/GetSession", 400),
    ],
)
async def test_no_refusal_is_kept_by_caches(
    served: Served, method: str, path: str, status: int
) -> None:
    refused = await served.http.request(method, path)
    assert refused.status_code == status
    assert refused.headers["cache-control"] == "no-store"
    assert refused.headers["x-content-type-options"] == "nosniff"
    assert refused.headers["content-type"] == "application/json"
    if method != "HEAD":
        assert refused.json().keys() >= {"code", "message"}
    if status == 405:
        assert "POST" in refused.headers["allow"]


async def test_a_body_with_two_lengths_is_refused(served: Served) -> None:
    """A proxy that reads the other length would let the rest in as a request (smuggling)."""
    hidden = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n"
    reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
    writer.write(
        f"POST {SESSIONS}/ListSessions HTTP/1.1\r\nhost: localhost\r\n"
        "content-type: application/json\r\ntransfer-encoding: chunked\r\n"
        f"content-length: {5 + len(hidden)}\r\n\r\n0\r\n\r\n".encode()
        + hidden
    )
    found = await reader.read()
    writer.close()
    assert found.startswith(b"HTTP/1.1 400 ")
    assert found.count(b"HTTP/1.1") == 1
    assert b"not both" in found


async def test_a_browser_goes_on_after_the_last_event_that_it_got(served: Served) -> None:
    async with palimpsest.connect(served.address) as client:
        session = client.session("a")
        await session.create(default_memory=False)
        schema = "class Notes:\n    word: str\n"
        memory = await session.create_memory("m", schema_source=schema)
        for word in ("one", "two"):
            await memory.edit([palimpsest.Edit.put("$['word']", word)])
        given = {"session": "a", "memory": "m", "afterRevision": "0"}

        async def events(count: int, **headers: str) -> list[tuple[str, dict[str, Any]]]:
            """Returns the ids of events and their messages, as EventSource reads them."""
            found: list[tuple[str, dict[str, Any]]] = []
            query = {"message": json.dumps(given)}
            url = "/palimpsest.v1.MemoryService/WatchMemory"
            async with served.http.stream("GET", url, params=query, headers=headers) as response:
                name = ""
                async for line in response.aiter_lines():
                    if line.startswith("id: "):
                        name = line.removeprefix("id: ")
                    elif line.startswith("data: "):
                        found.append((name, json.loads(line.removeprefix("data: "))))
                        if len([one for _, one in found if "revision" in one]) == count:
                            break
            return [one for one in found if "revision" in one[1]]

        first, second = await events(2)
        (again,) = await events(1, **{"last-event-id": first[0]})
        assert first[0] != second[0]
        assert again[1]["revision"] == second[1]["revision"]


async def test_tls_follows_its_files_and_checks_client_certificates(
    url: str, tmp_path: Path
) -> None:
    certificate, key = AUTHORITY.issue("localhost").write(tmp_path, "api")
    root = tmp_path / "root.pem"
    root.write_bytes(AUTHORITY.root.pem)
    files = {"tls_certificate_file": certificate, "tls_key_file": key, "tls_client_ca_file": root}
    # The certificate says who calls.
    settings = {**ANY, **files, "authentication": "required"}
    context = ssl.create_default_context(cafile=str(root))
    async with serving_both(url, **settings) as (_, at):
        at = at.replace("127.0.0.1", "localhost")
        with pytest.raises(httpx.HTTPError):
            async with over_http(at, verify=context) as http:
                await http.post(f"{SESSIONS}/ListSessions", json={})
        pair = AUTHORITY.issue("client", uris=["palimpsest:default"]).write(tmp_path, "client")
        context.load_cert_chain(*pair)
        async with over_http(at, verify=context) as http:
            assert (await http.post(f"{SESSIONS}/ListSessions", json={})).status_code == 200
            AUTHORITY.issue("localhost").write(tmp_path, "api")
            shown = served = await certificate_of(at, context)
            while shown == served:
                await asyncio.sleep(0.05)
                shown = await certificate_of(at, context)
            assert shown in certificate.read_text().replace("\r", "")
            # The connection of before goes on.
            assert (await http.post(f"{SESSIONS}/ListSessions", json={})).status_code == 200


async def certificate_of(at: str, context: ssl.SSLContext) -> str:
    """Returns the certificate that a new connection sees."""
    port = int(at.rpartition(":")[2])
    _, writer = await asyncio.open_connection("localhost", port, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return ssl.DER_cert_to_PEM_cert(shown)


async def test_a_port_that_is_taken_is_said(url: str, served: Served) -> None:
    taken = served.url.removeprefix("http://")
    with pytest.raises(CannotStart, match="PALIMPSEST_HTTP_LISTEN"):
        async with serving_both(url, http_listen=taken):
            pass


async def test_an_open_address_is_refused_without_tls(url: str) -> None:
    with pytest.raises(CannotStart, match=r"0\.0\.0\.0:0 can be reached from other machines"):
        async with serving_both(url, http_listen="0.0.0.0:0"):
            pass


async def test_where_others_may_call_any_name_of_the_machine_is_served(url: str) -> None:
    settings = {"http_listen": "0.0.0.0:0", "insecure": True}
    async with serving_both(url, **settings) as (_, at), over_http(at) as http:
        found = await http.post(f"{SESSIONS}/ListSessions", json={}, headers={"host": "memory.lan"})
        assert found.status_code == 200


async def test_an_import_over_http(served: Served) -> None:
    await served.call(f"{SESSIONS}/CreateSession", {"session": {"id": "a"}})
    await served.call(f"{SESSIONS}/Append", {"session": "a", "chunks": [{"text": "One."}]})
    connect = {"content-type": "application/connect+json"}
    exported = await served.http.post(
        f"{SESSIONS}/ExportSession", content=enveloped(b'{"session": "a"}'), headers=connect
    )
    lines = b"".join(
        json_format.Parse(content, pb.ExportSessionResponse()).data
        for flags, content in envelopes(exported.content)
        if not flags
    )
    header, _, rest = lines.partition(b"\n")
    opening = pb.ImportSessionRequest(
        open=pb.ImportSessionRequest.Open(session="b", header=header + b"\n")
    )
    frames = [opening, pb.ImportSessionRequest(data=rest)]
    content = b"".join(enveloped(json_format.MessageToJson(one).encode()) for one in frames)
    imported = await served.http.post(f"{SESSIONS}/ImportSession", content=content, headers=connect)
    *_, (flags, end) = envelopes(imported.content)
    assert (flags, end) == (2, b"{}")
    got = await served.call(f"{SESSIONS}/GetSession", {"session": "b"})
    assert got.json()["head"] == "1"
