"""Secrets and texts of users are in nothing that the service writes, whatever goes wrong.

Each setting and each request has a secret of its own, so that one that is found names its source.
"""

import asyncio
import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import psycopg
import pytest
from grpc import aio
from grpc_status import rpc_status

import palimpsest
from palimpsest.v1 import session_service_pb2, session_service_pb2_grpc
from tests.acceptance.memories.kept_memory import SCHEMA
from tests.support import forking
from tests.support.fake_model import FakeModel, served
from tests.support.harness import Servers, api, eventually, worker
from tests.support.otlp import Collector, collector

#: By what has it. Their letters are not those of any word or number of ours.
SECRETS = {
    name: f"zqx{name.replace('_', '')}xqz"
    for name in (
        "api_key", "embedding_key", "deployment_key", "url_login", "url_password", "database",
        "redis", "header", "cookie", "token", "otlp_header", "body",
    )
}  # fmt: skip
#: What users say; prompts have it, and replies that repeat them.
TEXT = "zqxwordsofauserxqz"


def planted(model_url: str = "http://127.0.0.1:9") -> dict[str, str]:
    """Returns settings with a secret in each place that can have one."""
    s = SECRETS
    host = model_url.removeprefix("http://")
    login = f"http://{s['url_login']}:{s['url_password']}@{host}"
    deployments = [
        {
            "model": "openai/planted",
            "name": "one",
            "base_url": login,
            "api_key": s["deployment_key"],
        }
    ]
    return {
        "PALIMPSEST_MODEL": "openai/planted",
        "PALIMPSEST_MODEL_BASE_URL": model_url,
        "PALIMPSEST_MODEL_API_KEY": s["api_key"],
        "PALIMPSEST_MODEL_SETTINGS": json.dumps({"openai/*": {"extra_body": {"token": s["body"]}}}),
        "PALIMPSEST_EMBEDDING_MODEL": "openai/vectors",
        "PALIMPSEST_EMBEDDING_BASE_URL": login,
        "PALIMPSEST_EMBEDDING_API_KEY": s["embedding_key"],
        "PALIMPSEST_DEPLOYMENTS": json.dumps(deployments),
        "PALIMPSEST_DATABASE_URL": f"postgresql://u:{s['database']}@127.0.0.1:1/d",
        "PALIMPSEST_REDIS_URL": f"redis://:{s['redis']}@127.0.0.1:1/0",
        "PALIMPSEST_TOKEN": s["token"],
        "PALIMPSEST_START_SECONDS": "0.5",
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={s['otlp_header']}",
    }


def forms(secret: str) -> set[str]:
    """Returns the secret as it may be written."""
    raw = secret.encode()
    return {secret, secret[:10], base64.b64encode(raw).decode()[:-4], raw.hex(), quote(secret)}


def assert_silent(written: str, *texts: str) -> None:
    """Fails when any secret, or one of these texts, is in what was written."""
    found = [
        name
        for name, secret in {**SECRETS, **{text: text for text in texts}}.items()
        if any(form.lower() in written.lower() for form in forms(secret))
    ]
    assert not found, f"{found} in:\n{written}"


def run(*arguments: str, **settings: str) -> str:
    """Returns everything that a command writes with these settings."""
    environment = {**os.environ, **settings}
    done = forking.run(arguments, environment=environment, seconds=120)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("config", "check"),
        ("config", "check", "--all", "--json"),
        ("serve",),
        ("work",),
        ("migrate",),
        ("doctor",),
        ("verify", "--all"),
        ("session", "list", "--address", "127.0.0.1:1"),
    ],
    ids=" ".join,
)
def test_commands_that_reach_nothing_write_no_secret(command: tuple[str, ...]) -> None:
    written = run(*command, **planted())
    assert written.strip(), "it says something"
    assert_silent(written)


#: Settings that are wrong, and hold a secret.
WRONG = {
    "PALIMPSEST_DATABASE_URL": "postgresql://u:{}@host:noport/d",
    "PALIMPSEST_SIGNALS_DATABASE_URL": "{}",
    "PALIMPSEST_REDIS_URL": "http://:{}@cache/0",
    "PALIMPSEST_MODEL_BASE_URL": "ftp://u:{}@host",
    "PALIMPSEST_EMBEDDING_BASE_URL": "u:{}@host",
    "PALIMPSEST_DEPLOYMENTS": '[{{"model": "openai/x", "api_key": "{}", "nonsense": 1}}]',
    "PALIMPSEST_MODEL_SETTINGS": '{{"openai/*": {{"extra_body": "{}"}}}}',
    "PALIMPSEST_MODEL_PROFILES": '{{"openai/*": {{"{}"',
}


@pytest.mark.parametrize("name", WRONG)
def test_settings_that_are_refused_are_not_shown(name: str) -> None:
    written = run("config", "check", **{name: WRONG[name].format(SECRETS["database"])})
    assert name.lower().removeprefix("palimpsest_") in written.lower(), "it names the setting"
    assert_silent(written)


class Echoes(FakeModel):
    """Refuses a key as some providers do: it repeats the key, and the prompt."""

    def respond(self, request: dict[str, Any]) -> tuple[int, dict[str, str], str]:
        # Also of vectors.
        sent = json.dumps(request)
        self.prompts.append(sent)
        said = f"Incorrect API key provided: {SECRETS['api_key']}. You said: {sent}"
        return 401, {}, json.dumps({"error": {"message": said, "code": "invalid_api_key"}})


@pytest.fixture
def model() -> Iterator[FakeModel]:
    echoes = Echoes()
    with served(echoes) as url:
        echoes.url = url
        yield echoes


@pytest.fixture
def spans() -> Iterator[Collector]:
    with collector() as found:
        yield found


#: Headers as clients, proxies and webhooks send them.
HEADERS = (
    ("authorization", f"Bearer {SECRETS['token']}"),
    ("x-api-key", SECRETS["header"]),
    ("x-hub-signature-256", f"sha256={SECRETS['header']}"),
    ("cookie", f"session={SECRETS['cookie']}"),
    ("palimpsest-token-bin", SECRETS["header"].encode()),
)


async def refusals(address: str) -> str:
    """Returns every error, with its details, of requests that are refused."""
    said: list[str] = []
    async with aio.insecure_channel(address) as channel:
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        text = session_service_pb2.AppendRequest(session=TEXT)
        text.chunks.add(text=TEXT)
        calls: tuple[tuple[Any, Any], ...] = (
            (stub.GetSession, session_service_pb2.GetSessionRequest(session="none")),
            (stub.GetSession, session_service_pb2.GetSessionRequest(session="a/b")),
            (stub.ListSessions, session_service_pb2.ListSessionsRequest(page_token="nonsense")),
            (
                stub.SearchChunks,
                session_service_pb2.SearchChunksRequest(session="s", mode=cast(Any, 99)),
            ),
            (
                stub.CreateSession,
                session_service_pb2.CreateSessionRequest(
                    session=session_service_pb2.Session(id="s", language="klingon")
                ),
            ),
        )
        for call, request in calls:
            with pytest.raises(aio.AioRpcError) as caught:
                await call(request, metadata=HEADERS)
            said.append(f"{caught.value.details()} {caught.value.trailing_metadata()}")
            status: Any = rpc_status.from_call(caught.value)
            said.append(str(status))
    return "\n".join(said)


def scanned(servers: Servers, url: str) -> str:
    """Returns what the database has of failures."""
    queries = (
        "SELECT * FROM model_condition",
        "SELECT * FROM dead_letter",
        "SELECT * FROM operation",
        "SELECT waiting_cause, waiting_model, held_reason FROM memory",
        "SELECT failure, said FROM call",
    )
    with psycopg.connect(servers.as_superuser(url)) as connection:
        return str([connection.execute(query).fetchall() for query in queries])


@pytest.mark.prove
def test_a_service_whose_model_refuses_the_key_writes_neither_key_nor_text(
    servers: Servers, model: FakeModel, spans: Collector, tmp_path: Path
) -> None:
    url = servers.new_database()
    settings = {
        **planted(model.url),
        **spans.environment,
        "PALIMPSEST_LOG_LEVEL": "debug",
        "PALIMPSEST_RECORD": str(tmp_path / "recorded"),
        "PALIMPSEST_DEPLOYMENTS": "[]",
        "PALIMPSEST_EMBEDDING_BASE_URL": model.url,
        "PALIMPSEST_START_SECONDS": "30",
    }
    del settings["PALIMPSEST_DATABASE_URL"]
    shown: list[str] = []

    async def use(address: str) -> None:
        shown.append(await refusals(address))
        async with palimpsest.connect(address) as client:
            session = await client.create_session("s")
            memory = await session.create_memory("m", schema_source=SCHEMA, linger=0)
            acked = await session.append(TEXT)
            for refused in (
                memory.get(after=acked.read_token, timeout=3),
                memory.ask(TEXT, timeout=3),
                session.search(TEXT, mode="vectors"),
            ):
                try:
                    shown.append(repr(await refused))
                except palimpsest.PalimpsestError as error:
                    shown.append(f"{error} {error.metadata} {error!r}")
            eventually("a refusal of the model", lambda: bool(model.prompts))

    with api(url, **settings) as (server, address), worker(url, **settings) as working:
        asyncio.run(use(address))
        spans.wait("the append", lambda all: all.named("palimpsest.v1.SessionService/Append"))
        spans.wait("a model's call", lambda all: [one for one in all.spans if "chat" in one.name])
        written = server.log() + working.log()
        doctor = run("doctor", **{**settings, "PALIMPSEST_DATABASE_URL": url})
    assert model.prompts
    assert any(TEXT in prompt for prompt in model.prompts), "the text was sent"
    assert "model call failed" in written
    assert_silent(written, TEXT)
    assert_silent(str(spans.spans), TEXT)
    assert_silent(doctor, TEXT)
    assert_silent("\n".join(shown[:1]), TEXT)
    assert_silent("\n".join(shown))
    assert_silent(scanned(servers, url), TEXT)
    recorded = [one for one in (tmp_path / "recorded").rglob("*") if one.is_file()]
    assert_silent("\n".join(one.read_text(errors="replace") for one in recorded))
