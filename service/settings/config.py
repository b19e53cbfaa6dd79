"""Configuration: the settings, frozen, with secrets marked; `service.settings` reads them."""

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from platformdirs import site_data_path, user_data_path
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic_core import PydanticCustomError

from service.domain.access.identity import Scope
from service.settings.deployments import Deployments
from service.settings.files import default_run_dir
from service.settings.mcp_tools import DEFAULT_TOOLS, checked
from service.settings.models import (
    BaseUrl,
    ModelName,
    ModelPatterns,
    ModelPriceOverrides,
    ModelProfiles,
    ModelSettings,
    OptionalKey,
)

_HOST = r"(\[[^\]]*\]|[^/:@,]*)(:\d{1,5})?"
#: Several hosts are tried in their order. A password may hold what ought to be escaped.
_DATABASE_URL = re.compile(
    rf"postgres(ql)?://(.*@)?{_HOST}(?P<more>(,{_HOST})*)(/[^?]*)?(?P<query>\?.*)?", re.DOTALL
)
#: What libpq is to look for among several hosts.
_WRITABLE = "target_session_attrs=read-write"
_REDIS_URL = re.compile(r"(rediss?|unix)://.+", re.DOTALL)
_LISTEN = re.compile(r"(unix:.+|.+:(?P<port>\d{1,5}))")


def _checked_database_url(url: SecretStr) -> SecretStr:
    # None of these says what was given: it holds a password.
    found = _DATABASE_URL.fullmatch(url.get_secret_value())
    if found is None:
        said = "is no URL postgresql://login:password@host:port/database"
        raise PydanticCustomError("database_url", said)
    if found["more"] and "target_session_attrs=" not in (found["query"] or ""):
        return SecretStr(f"{found[0]}{'&' if found['query'] else '?'}{_WRITABLE}")
    return url


def _checked_redis_url(url: SecretStr) -> SecretStr:
    if not _REDIS_URL.fullmatch(url.get_secret_value()):
        raise PydanticCustomError("redis_url", "is no URL redis://:password@host:port/number")
    return url


def _checked_listen(address: str) -> str:
    found = _LISTEN.fullmatch(address)
    if found is None or int(found["port"] or 0) > 65_535:
        raise PydanticCustomError("listen", "is not HOST:PORT, with a port up to 65535")
    return address


def _checked_other_listen(address: str | None) -> str | None:
    return _checked_listen(address) if address else None


def _checked_port_listen(address: str | None) -> str | None:
    # Empty is as not set.
    if not address:
        return None
    if address.startswith("unix:"):
        raise PydanticCustomError("listen", "is not HOST:PORT, such as 127.0.0.1:9464")
    return _checked_listen(address)


def _checked_origin(origin: str) -> str:
    found = urlsplit(origin)
    is_origin = found.scheme in ("http", "https") and origin == f"{found.scheme}://{found.netloc}"
    if origin != "*" and not is_origin:
        raise PydanticCustomError("origin", "is no origin such as https://app.example.org")
    return origin


def _listed(given: Any) -> Any:
    return [one.strip() for one in given.split(",")] if isinstance(given, str) else given


def _checked_tools(names: tuple[str, ...]) -> tuple[str, ...]:
    return checked(tuple(one for one in names if one))


def _checked_issuer_url(url: str | None) -> str | None:
    if not url:
        return None
    found = urlsplit(url)
    is_local = found.scheme == "http" and found.hostname in ("localhost", "127.0.0.1", "::1")
    if not found.hostname or not (found.scheme == "https" or is_local):
        raise PydanticCustomError("issuer_url", "is no https:// URL")
    if found.username or found.password or found.fragment:
        raise PydanticCustomError("issuer_url", "has a login or a fragment, which is not used")
    return url


Scopes = Annotated[tuple[Scope, ...], BeforeValidator(_listed), Field(min_length=1)]
Origins = Annotated[
    tuple[Annotated[str, AfterValidator(_checked_origin)], ...], BeforeValidator(_listed)
]
ToolNames = Annotated[tuple[str, ...], BeforeValidator(_listed), AfterValidator(_checked_tools)]
IssuerUrl = Annotated[str | None, AfterValidator(_checked_issuer_url)]
#: None of them is symmetric: the key of such a signature would be public.
JwtAlgorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
JwtAlgorithms = Annotated[tuple[JwtAlgorithm, ...], BeforeValidator(_listed), Field(min_length=1)]
DatabaseUrl = Annotated[SecretStr, AfterValidator(_checked_database_url)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
#: 0 does not limit.
Quota = Annotated[int, Field(ge=0, le=10**15)]

#: Numbers of the longest vector.
MAX_DIMENSIONS = 16_000
#: The model that serves when none is configured: deterministic, no network.
OFFLINE_MODEL = "offline/extractive"


def _default_data_dir() -> Path:
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return (
            site_data_path("palimpsest") if sys.platform != "linux" else Path("/var/lib/palimpsest")
        )
    return user_data_path("palimpsest")


class Limits(BaseModel):
    """Every limit of the service; the proto's comments name the same ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: A gRPC message, in bytes.
    max_message_bytes: Count = 4 * 1024 * 1024
    #: The content of a chunk, in bytes of UTF-8.
    max_chunk_bytes: Count = 256 * 1024
    #: Chunks of a batch.
    max_batch_chunks: Count = 256
    #: Content of a batch, in bytes.
    max_batch_bytes: Count = 1024 * 1024
    #: A block of lines of an import, in bytes, which its stream has in memory. An answer is in one
    #: block with its trajectory.
    max_import_block_bytes: Annotated[int, Field(ge=1024 * 1024)] = 64 * 1024 * 1024
    #: Days after its last block that an unfinished import is kept.
    unfinished_import_days: Annotated[int, Field(ge=1, le=3650)] = 7
    #: Chunks that one call redacts; at most 50,000, which a line of the erasure journal can have.
    max_redacted_chunks: Annotated[int, Field(ge=1, le=50_000)] = 10_000
    #: Texts that a session keeps out after they were redacted; at most 5,000.
    max_kept_out: Annotated[int, Field(ge=1, le=5000)] = 1000
    #: Unacked chunks of a stream.
    credit_chunks: Count = 1024
    #: Unacked bytes of a stream.
    credit_bytes: Count = 8 * 1024 * 1024
    #: Chunks that a session's slowest active memory may lag. A batch has no more new ones than
    #: this, and a stream no more credit.
    backlog_chunks: Count = 100_000
    #: Threads, or sources, that a filter of chunks names.
    max_filter_ids: Annotated[int, Field(ge=1, le=64)] = 64
    #: The budget of a recalled text, in tokens.
    max_recall_tokens: Count = 100_000
    #: Keys of a tenant that are neither revoked nor expired.
    max_keys: Count = 1000
    #: Quota of tenants without one of their own, except `default` and `system`: calls a second, of
    #: all servers together; 0: any number.
    tenant_requests_per_second: Quota = 0
    #: The same for chunks that are appended in a second.
    tenant_chunks_per_second: Quota = 0
    #: The same for the size of chunks that are appended in a second, in bytes.
    tenant_bytes_per_second: Quota = 0
    #: The same for questions whose answers are streamed at once.
    tenant_concurrent_asks: Quota = 0
    #: The same for other streams at once.
    tenant_concurrent_streams: Quota = 0
    #: The same for sessions.
    tenant_sessions: Quota = 0
    #: The same for memories.
    tenant_memories: Quota = 0
    #: The same for the content of all chunks, in bytes.
    tenant_stored_bytes: Quota = 0
    #: Memories of a session.
    max_memories: Count = 64
    #: The value of a PRISM memory as canonical JSON, in bytes.
    max_memory_bytes: Count = 1024 * 1024
    #: The recent steps of a working context: how many, and their content in bytes of UTF-8.
    max_context_chunks: Count = 10_000
    max_context_bytes: Count = 1024 * 1024
    #: Text that no node of a tree, or vector, covers yet: how much one navigation reads, in bytes.
    #: Each chunk counts as its content and 128 bytes. Of more it reads the newest.
    max_tail_bytes: Count = 8 * 1024 * 1024
    #: The log that DCISO decomposes for one question, in bytes, counted alike. Of more it reads the
    #: first and the newest, half each; retrieval reaches the rest.
    max_browsed_bytes: Count = 16 * 1024 * 1024
    #: Questions, and schemas, that a server process waits for at once.
    max_waiting_asks: Count = 1000
    #: Answers of one tenant that are pending at once, and as many schemas. Only those count whose
    #: clients have not left, and those that are made unattended.
    max_pending_answers: Count = 1000
    #: Watches of memories that a server process serves at once.
    max_watches: Count = 1000
    #: Reads, and rebuilds, that wait in a server process for a memory at once.
    max_waiting_reads: Count = 1000
    #: Chunks that a server process has received and not yet written, in bytes; each counts as its
    #: content, its metadata and 1 KiB.
    max_unwritten_bytes: Count = 256 * 1024 * 1024
    #: Calls that a server process serves at once, streams included.
    max_calls: Count = 5000
    #: How many of these one tenant may have, and all clients at one address. Behind a proxy
    #: all clients have the proxy's address.
    max_tenant_calls: Count = 4000
    max_address_calls: Count = 2500
    #: Calls of one connection; its client delays more. gRPC refuses streams before ours are all
    #: freed, so a part of a larger burst ends with UNAVAILABLE.
    max_connection_calls: Count = 5000
    #: Calls whose first message a server process reads at once; each may have a message of
    #: max_message_bytes. Others wait, with one HTTP/2 window of 64 KiB each.
    max_incomplete_messages: Count = 16
    #: By how much a server process's memory may grow while streams wait for further messages. Then
    #: the waiting streams are closed, as after stream_idle_seconds. Only with glibc.
    max_incomplete_bytes: Count = 64 * 1024 * 1024
    #: How long the first message of a call may take to arrive completely.
    message_seconds: Count = 30
    #: A stream whose client sends nothing for this long is closed; producers open another.
    stream_idle_seconds: Count = 1800
    #: Connections that a server process accepts at once; it closes further ones.
    max_connections: Count = 5000
    #: After this long a client is asked to open another connection for its next calls, so that
    #: added servers get their share. Calls in progress continue.
    connection_seconds: Count = 3600
    #: This much later the calls that are still in progress end, and clients make them again.
    connection_grace_seconds: Count = 900
    #: A connection without a call is closed after this long; clients open another one.
    connection_idle_seconds: Count = 1800
    #: The least time between two pings of a client; one that pings more often is disconnected.
    client_ping_seconds: Count = 10


class Config(BaseModel):
    """What a process needs to know; docs/reference/settings.md says how each setting is set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: postgresql:// URL of the data; processes use the role palimpsest_app there. Of several hosts
    #: (host1:port1,host2:port2) the first one that takes writes is used.
    database_url: DatabaseUrl | None = None
    #: URL with the right to change tables, for `migrate`; default: database_url.
    migration_database_url: DatabaseUrl | None = None
    #: The same database, for notifications between processes; default: database_url. Never a
    #: pooler's, which does not pass LISTEN on.
    signals_database_url: DatabaseUrl | None = None
    #: `transaction`: at database_url a pooler gives each transaction another connection to the
    #: server. Then nothing is prepared, and the two URLs above have to name the server itself.
    database_pooler: Literal["none", "transaction"] = "none"
    #: redis:// URL of the prefix cache's index. Without it each process predicts from what it
    #: sent itself.
    redis_url: Annotated[SecretStr, AfterValidator(_checked_redis_url)] | None = None
    #: Whether that is a Redis cluster; else the first command finds out.
    redis_cluster: bool = False
    #: How long it may take to reply before it counts as gone and is not used for a second.
    redis_timeout_seconds: Seconds = 0.2
    #: Where the API listens.
    listen: Annotated[str, AfterValidator(_checked_listen)] = "127.0.0.1:50051"
    #: Where the same API is served over HTTP, in JSON; docs/guides/http.md. Unset: nowhere; `up`
    #: serves it at 127.0.0.1:50080.
    http_listen: Annotated[str | None, AfterValidator(_checked_port_listen)] = None
    #: Origins of web pages that may call the API over HTTP, such as https://app.example.org,
    #: separated by commas; "*": all.
    http_origins: Origins = ()
    #: Tools for models that are served at /mcp/SESSION over HTTP; docs/guides/mcp.md. Empty: none.
    mcp_tools: ToolNames = DEFAULT_TOOLS
    #: Whether these may be addresses that other machines reach without TLS, or without
    #: authentication: only for networks in which every member may do everything.
    insecure: bool = False
    #: `required`: each call needs valid credentials, which name its tenant; docs/guides/access.md.
    #: `none`: every client is the default tenant and may do everything. Unset: `required`
    #: with `jwt_issuer` or `tls_client_ca_file`; else `none` where only this machine reaches the
    #: API, and with `insecure`; else `required`.
    authentication: Literal["none", "required"] | None = None
    #: PEM file of the API's certificate, with those between it and its root. With it the API is
    #: served by TLS. Changed files apply to new connections, without a restart.
    tls_certificate_file: Path | None = None
    #: PEM file of its key, without a passphrase.
    tls_key_file: Path | None = None
    #: PEM file of the roots of client certificates: clients must have one, and it says who they
    #: are.
    tls_client_ca_file: Path | None = None
    #: HOST:PORT where clients must have a certificate. Unset: they must at the address above, if
    #: there are roots of client certificates.
    mutual_tls_listen: Annotated[str | None, AfterValidator(_checked_other_listen)] = None
    #: How long a server trusts what it has read of a key. A revoked key, or one of a suspended
    #: tenant, may be accepted as long. Streams verify their credentials as often.
    key_cache_seconds: Annotated[float, Field(gt=0, le=300)] = 10.0
    #: What clients may do whose certificate names a tenant, separated by commas.
    mutual_tls_scopes: Scopes = (Scope.READ, Scope.APPEND, Scope.ASK, Scope.EDIT)
    #: The `iss` of the JSON Web Tokens that are accepted, which is the URL of an OIDC issuer.
    #: Unset: none are. With it, jwt_audience is needed too; docs/guides/access.md.
    jwt_issuer: IssuerUrl = None
    #: The `aud` that tokens for this service have.
    jwt_audience: Annotated[str | None, BeforeValidator(lambda given: given or None)] = None
    #: URL of the issuer's keys (JWKS). Unset: the issuer's discovery document names it.
    jwt_jwks_url: IssuerUrl = None
    #: Algorithms of signatures that are accepted, all of them asymmetric, separated by commas.
    jwt_algorithms: JwtAlgorithms = ("RS256", "ES256")
    #: The claim that names the tenant.
    jwt_tenant_claim: Annotated[str, Field(min_length=1, max_length=200)] = "tenant"
    #: What scopes in tokens begin with, as in `palimpsest:read`; others count for nothing.
    jwt_scope_prefix: Annotated[str, Field(max_length=100)] = ""
    #: How far the issuer's clock and this one may differ.
    jwt_leeway_seconds: Annotated[float, Field(ge=0, le=300)] = 30.0
    #: PEM file of the roots that are trusted for the issuer's HTTPS; unset: those of the system.
    jwt_ca_file: Path | None = None
    #: Whether the API describes itself to tools by gRPC's server reflection. `up` does.
    reflection: bool = False
    #: Where `up` keeps its data. As root not in root's home, which the user that PostgreSQL has to
    #: run as cannot enter.
    data_dir: Path = Field(default_factory=_default_data_dir)
    #: Where processes of this user answer `palimpsest health`, each at a socket of its own.
    run_dir: Path = Field(default_factory=default_run_dir)
    #: The erasure journal: a file outside the database, and outside its backups, by which a
    #: restored database repeats the erasures that it has missed. All servers and workers use the
    #: same one. `up` keeps it in its data folder; other processes keep none unless it is set.
    erasure_journal: Path | None = None
    #: HOST:PORT of /metrics, /livez and /readyz over HTTP; unset: none. The executor of a worker
    #: has the next port. Clients that reach it can read figures, but no names.
    metrics_listen: Annotated[str | None, AfterValidator(_checked_port_listen)] = None
    #: The model for memories and schemas that name none, as provider/name.
    model: ModelName = OFFLINE_MODEL
    #: Which other models memories, questions and schemas may name: provider/name, or provider/ and
    #: a name with "*" in it, separated by commas. The default model and those of deployments are
    #: always allowed. The same for all processes.
    models: ModelPatterns = ("offline/*", "local/*")
    #: Base URL of an OpenAI-compatible endpoint, for models named openai/….
    model_base_url: BaseUrl | None = None
    #: Whether that endpoint supports a JSON Schema of the reply (response_format).
    model_structured_output: bool = False
    #: Key for that endpoint; providers' own variables work as well.
    model_api_key: OptionalKey = None
    #: JSON: from a model's name, or its beginning and "*", to prices and habits of its cache that
    #: override litellm's list; docs/guides/models.md has the fields.
    model_prices: ModelPriceOverrides = Field(default_factory=dict)
    #: JSON: from a model's name, or its beginning and "*", to settings of its calls: effort, limit,
    #: temperature and more, and those of single purposes; docs/guides/models.md.
    model_settings: ModelSettings = Field(default_factory=dict)
    #: JSON: from a model's name, or its beginning and "*", to how it is called, if the tables of
    #: `service.llm.providers.profiles` do not know it or are wrong; docs/guides/models.md.
    model_profiles: ModelProfiles = Field(default_factory=dict)
    #: Tokens of a prompt and its reply, for models that litellm's list does not know.
    model_window_tokens: Count = 32_768
    #: The automatic reader reads a log whole if prompt and reply have no more tokens than this, and
    #: fit the window of the model; 1: never.
    auto_whole_tokens: Count = 32_768
    #: Several deployments of models: a JSON list, or the path of a file with one.
    deployments: Deployments = ()
    #: A folder to which every exchange with a model is written, prompts and replies included, for
    #: `palimpsest model replay`; unset: none is.
    record: Path | None = None
    #: How long a model call may take.
    model_timeout_seconds: Seconds = 120.0
    #: Transport tries of one model call before its step counts as failed.
    model_tries: Count = 3

    #: The language of sessions that name none: a configuration of PostgreSQL's text search.
    search_language: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")] = "english"
    #: The model for vectors: local/minilm, or litellm's name; empty: search is by words only.
    #: The same for all processes.
    embedding_model: Annotated[ModelName, Field(pattern=r"^([^/\s]+/\S+)?$", max_length=200)] = ""
    #: Base URL and key of an OpenAI-compatible endpoint, for embedding models named openai/….
    embedding_base_url: BaseUrl | None = None
    embedding_api_key: OptionalKey = None
    #: Length of each vector, if litellm's list does not know it; the model is asked for fewer
    #: numbers than its own.
    embedding_dimensions: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)] | None = None
    #: Each part of this many tokens of a longer chunk has a vector of its own.
    embedding_max_tokens: Annotated[int, Field(ge=16)] = 256
    #: The prefix of a question, and of a chunk, for models that were trained with one.
    embedding_query_prefix: Annotated[str, Field(max_length=500)] = ""
    embedding_chunk_prefix: Annotated[str, Field(max_length=500)] = ""
    #: How long a call for vectors may take.
    embedding_timeout_seconds: Seconds = 60.0

    #: How long a worker or executor that dies keeps others from the calls it was to make; renewed
    #: while a call is in progress.
    call_lease_seconds: Seconds = 10.0
    #: Unix socket of an executor that several workers share (`palimpsest executor --socket`);
    #: without it each worker starts one of its own.
    caller_socket: Path | None = None

    #: The longest pause between two probes of a model that does not reply; a provider may ask for
    #: more, up to 5 minutes. Work that waits for the model continues at most this long after it is
    #: back.
    model_probe_seconds: Seconds = 30.0
    #: Memories and answers that one worker process works on at once.
    worker_concurrency: Count = 16
    #: A model that has replied to none of a worker's calls for this long, while some wait, counts
    #: as unresponsive until it replies.
    silent_seconds: Seconds = 30.0
    #: How much of what a worker process works on at once may wait for unresponsive models; at most
    #: all but one of its slots. With one slot, unresponsive models and the others take turns.
    silent_concurrency: Count = 8
    #: Model calls that one worker process makes at once for one summary tree.
    build_concurrency: Count = 32
    #: Model calls that one worker process makes at once for one browsed answer.
    browse_concurrency: Count = 8
    #: How often a worker reports that it is alive.
    heartbeat_seconds: Seconds = 5.0
    #: A worker counts as dead after this long without a report, and its work is freed.
    dead_after_seconds: Seconds = 15.0
    #: How often any worker looks for dead ones.
    sweep_seconds: Seconds = 1.0
    #: How often a worker with free slots looks for work without a notification.
    reconcile_seconds: Seconds = 2.0
    #: Tries of a step before its memory stalls (or skips it).
    step_tries: Count = 5
    #: Wait before the second try of a step, or of words or vectors of a session, by chance up
    #: to a half less; doubles with each further one.
    step_backoff_seconds: Seconds = 1.0
    #: How long an answer that was begun continues after all clients that waited for it have left,
    #: so that they can reconnect. Then it is abandoned until a client resumes it.
    abandoned_answer_seconds: Annotated[float, Field(ge=1, le=86_400)] = 60.0
    #: The memory that the first append to a session makes, if the session has none by then and its
    #: creator did not choose: `general`, a PRISM memory "default", which costs model calls; or
    #: `none`.
    default_memory: Literal["general", "none"] = "general"
    #: How long a PRISM memory without a `linger` of its own waits for more chunks while everything
    #: that waits to be read is messages; 0: it does not. Reads that wait, questions and FlushMemory
    #: end the wait.
    message_linger_seconds: Annotated[float, Field(ge=0, le=3600)] = 10.0
    #: Messages whose texts have no more tokens than this together, such as greetings and thanks,
    #: wait longer, until more comes; 0: they do not.
    small_talk_tokens: Annotated[int, Field(ge=0, le=1000)] = 24
    #: How long they wait at the most; no less than `message_linger_seconds`. The same ends it.
    small_talk_linger_seconds: Annotated[float, Field(ge=0, le=86_400)] = 300.0
    #: How long the query of a recall may take to be embedded; then words alone are searched.
    recall_embedding_seconds: Seconds = 2.0
    #: How often policies of retention are applied to each tenant that has any.
    retention_seconds: Seconds = 3600.0
    #: How long a worker stays with one memory before others get their turn.
    drain_seconds: Seconds = 30.0
    #: How often a process probes its database; it is not ready after three failures in a row, and
    #: ready again after two successes.
    probe_seconds: Seconds = 1.0
    #: How long `work` and `serve` wait for the database when they start.
    start_seconds: Seconds = 30.0
    #: How long `work` and `serve` may finish what they began when stopped.
    stop_seconds: Seconds = 30.0

    #: Connections to the database of one process.
    pool_size: Count = 10
    #: The least severe level that is logged.
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        BeforeValidator(lambda level: level.lower() if isinstance(level, str) else level),
    ] = "info"
    #: One JSON object a line, or lines for people.
    log_format: Literal["json", "console"] = "json"
    #: A log file of `up` is rotated at this size, replacing the previous one: each server and
    #: process has at most two files of about this size.
    log_file_bytes: Annotated[int, Field(ge=64 * 1024)] = 16 * 1024 * 1024

    limits: Limits = Field(default_factory=Limits)

    @property
    def is_pooled(self) -> bool:
        """Whether a connection to the database is another one for each transaction."""
        return self.database_pooler == "transaction"
