"""Configuration: the settings, frozen, with secrets marked; `service.settings` reads them."""

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Literal

from platformdirs import site_data_path, user_data_path
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic_core import PydanticCustomError

from service.settings.deployments import Deployments
from service.settings.models import (
    BaseUrl,
    ModelName,
    ModelPatterns,
    ModelPriceOverrides,
    ModelProfiles,
    ModelSettings,
    OptionalKey,
)
from service.settings.run_dir import default_run_dir

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


def _checked_metrics_listen(address: str | None) -> str | None:
    # Empty is as not set.
    if not address:
        return None
    if address.startswith("unix:"):
        raise PydanticCustomError("listen", "is not HOST:PORT, such as 127.0.0.1:9464")
    return _checked_listen(address)


DatabaseUrl = Annotated[SecretStr, AfterValidator(_checked_database_url)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]

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
    #: Unacked chunks of a stream.
    credit_chunks: Count = 1024
    #: Unacked bytes of a stream.
    credit_bytes: Count = 8 * 1024 * 1024
    #: Chunks that a session's slowest active memory may be behind the head. A batch has no
    #: more new ones than this, and a stream no more credit.
    backlog_chunks: Count = 100_000
    #: Threads, or sources, that a filter of chunks names.
    max_filter_ids: Annotated[int, Field(ge=1, le=64)] = 64
    #: Memories of a session.
    max_memories: Count = 64
    #: The value of a PRISM memory as canonical JSON, in bytes.
    max_memory_bytes: Count = 1024 * 1024
    #: The recent steps of a working context: how many, and their content in bytes of UTF-8.
    max_context_chunks: Count = 10_000
    max_context_bytes: Count = 1024 * 1024
    #: Text that no node of a tree, or vector, has yet: what one navigation holds of it, in bytes.
    #: Each chunk counts as its content and 128 bytes. Of more it has the newest.
    max_tail_bytes: Count = 8 * 1024 * 1024
    #: The log that DCISO decomposes for one question, in bytes, counted alike. Of more it has
    #: the first and the newest, half each; the rest is reached by retrieval.
    max_browsed_bytes: Count = 16 * 1024 * 1024
    #: Asks, and schemas, that a server process waits on at once.
    max_waiting_asks: Count = 1000
    #: Answers of one tenant that are pending at once, and as many schemas. Those count whose
    #: clients have not left, and those that are made unattended.
    max_pending_answers: Count = 1000
    #: Watches of memories that a server process has at once.
    max_watches: Count = 1000
    #: Reads, and rebuilds, that wait in a server process for a memory at once.
    max_waiting_reads: Count = 1000
    #: What a server process has received of chunks and not written yet, in bytes; each chunk
    #: counts as its content, its metadata and 1 KiB.
    max_unwritten_bytes: Count = 256 * 1024 * 1024
    #: Calls that a server process has under way at once, streams among them.
    max_calls: Count = 5000
    #: Of these, the calls of one tenant, and of all clients at one address. Behind a proxy all
    #: clients have the proxy's address.
    max_tenant_calls: Count = 4000
    max_address_calls: Count = 2500
    #: Calls of one connection; its client holds back what is more. gRPC refuses streams before
    #: ours are all freed, so a burst larger than this ends in part with UNAVAILABLE.
    max_connection_calls: Count = 5000
    #: Calls whose first message a server process reads at once; each may hold a message of
    #: max_message_bytes. Others wait, with one HTTP/2 window of 64 KiB each.
    max_incomplete_messages: Count = 16
    #: By how much a server process's memory may grow while streams wait for further messages.
    #: Then the streams that wait are closed, as after stream_idle_seconds. Only with glibc.
    max_incomplete_bytes: Count = 64 * 1024 * 1024
    #: How long the first message of a call may take to come whole.
    message_seconds: Count = 30
    #: A stream whose client sends nothing for so many seconds is closed; producers open another.
    stream_idle_seconds: Count = 1800
    #: Connections that a server process accepts at once; it closes what is more.
    max_connections: Count = 5000
    #: After so many seconds a client is told to make another connection for its next calls, so
    #: that servers that were added get their share. Those under way go on.
    connection_seconds: Count = 3600
    #: So many seconds later the calls that are still under way end, and clients make them again.
    connection_grace_seconds: Count = 900
    #: A connection without a call is closed after so many seconds; clients make another one.
    connection_idle_seconds: Count = 1800
    #: Between two pings of a client at least; who pings more often is cut off.
    client_ping_seconds: Count = 10


class Config(BaseModel):
    """What a process needs to know; docs/reference/settings.md says how each setting is set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: postgresql:// URL of the data; processes use the role palimpsest_app in it. Of several
    #: hosts (host1:port1,host2:port2) the first one that takes writes is used.
    database_url: DatabaseUrl | None = None
    #: URL with the right to change tables, for `migrate`; default: database_url.
    migration_database_url: DatabaseUrl | None = None
    #: Where processes hear each other: the same database; default: database_url. Never a
    #: pooler's, which does not pass LISTEN on.
    signals_database_url: DatabaseUrl | None = None
    #: `transaction`: at database_url a pooler gives each transaction another connection to the
    #: server. Nothing is prepared then, and the two URLs above have to lead to the server.
    database_pooler: Literal["none", "transaction"] = "none"
    #: redis:// URL of the prefix cache's index. Without it each process predicts from what it
    #: sent itself.
    redis_url: Annotated[SecretStr, AfterValidator(_checked_redis_url)] | None = None
    #: Whether that is a Redis cluster; else it is found out at the first command.
    redis_cluster: bool = False
    #: Whether copies of replies are kept there for a day: text of memories in a second place.
    redis_replies: bool = True
    #: How long it may take to answer before it counts as gone and is left alone for a second.
    redis_timeout_seconds: Seconds = 0.2
    #: Where the API listens.
    listen: Annotated[str, AfterValidator(_checked_listen)] = "127.0.0.1:50051"
    #: Whether that may be an address that other machines reach. There is neither
    #: authentication nor encryption: only for networks in which all may do everything.
    insecure: bool = False
    #: Whether the API describes itself to tools by gRPC's server reflection. `up` does.
    reflection: bool = False
    #: Where `up` keeps its data. As root not in root's home, which is closed to the
    #: user that PostgreSQL has to run as.
    data_dir: Path = Field(default_factory=_default_data_dir)
    #: Where processes of this user answer `palimpsest health`, each at a socket of its own.
    run_dir: Path = Field(default_factory=default_run_dir)
    #: HOST:PORT of /metrics, /livez and /readyz over HTTP; unset: none. Of a worker, the process
    #: that makes its calls has the next port. Whoever reaches it reads figures, but no names.
    metrics_listen: Annotated[str | None, AfterValidator(_checked_metrics_listen)] = None
    #: The model for memories and schemas that name none, as provider/name.
    model: ModelName = OFFLINE_MODEL
    #: What else memories, questions and schemas may name: provider/name, or provider/ and a
    #: name with "*" in it, with commas between them. The default model and those of
    #: deployments may be named in any case. The same for all processes.
    models: ModelPatterns = ("offline/*", "local/*")
    #: Base URL of an OpenAI-compatible endpoint, for models named openai/….
    model_base_url: BaseUrl | None = None
    #: Whether that endpoint keeps to a JSON Schema of the reply (response_format).
    model_structured_output: bool = False
    #: Key for that endpoint; providers' own variables work as well.
    model_api_key: OptionalKey = None
    #: JSON: from a model's name, or its beginning and "*", to prices and habits of its
    #: cache that win over litellm's list; docs/guides/models.md has the fields.
    model_prices: ModelPriceOverrides = Field(default_factory=dict)
    #: JSON: from a model's name, or its beginning and "*", to settings of its calls: effort,
    #: bound, temperature and more, and those of single purposes; docs/guides/models.md.
    model_settings: ModelSettings = Field(default_factory=dict)
    #: JSON: from a model's name, or its beginning and "*", to how it is asked, where the
    #: tables of `service.llm.providers.profiles` do not know it or are wrong;
    #: docs/guides/models.md.
    model_profiles: ModelProfiles = Field(default_factory=dict)
    #: Tokens of a prompt and its reply, for models that litellm's list does not know.
    model_window_tokens: Count = 32_768
    #: A log is read whole by the automatic reader when prompt and reply have no more tokens
    #: than this, and fit the window of the model; 1: never.
    auto_whole_tokens: Count = 32_768
    #: Several deployments of models: a JSON list, or the path of a file with one.
    deployments: Deployments = ()
    #: A folder in which every exchange with a model is written, prompts and replies with it, for
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
    #: Numbers of each vector, where litellm's list does not know them; fewer than the model's
    #: own are asked of it.
    embedding_dimensions: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)] | None = None
    #: Of a longer chunk each part of so many tokens has a vector of its own.
    embedding_max_tokens: Annotated[int, Field(ge=16)] = 256
    #: What stands before a question, and before a chunk, where a model was trained so.
    embedding_query_prefix: Annotated[str, Field(max_length=500)] = ""
    embedding_chunk_prefix: Annotated[str, Field(max_length=500)] = ""
    #: How long a call for vectors may take.
    embedding_timeout_seconds: Seconds = 60.0

    #: How long a worker or executor that dies keeps others from the calls it was to make;
    #: renewed while a call is under way.
    call_lease_seconds: Seconds = 10.0
    #: Unix socket of an executor that several workers share (`palimpsest executor --socket`);
    #: without it each worker starts one of its own.
    caller_socket: Path | None = None

    #: The longest pause between two probes of a model that gives no replies; a provider may
    #: ask for more, up to 5 minutes. What waits for the model goes on that soon after it is back.
    model_probe_seconds: Seconds = 30.0
    #: Memories and answers that one worker process works on at once.
    worker_concurrency: Count = 16
    #: A model that has replied to none of a worker's calls for so long, while some wait, counts
    #: as unresponsive until it replies.
    silent_seconds: Seconds = 30.0
    #: Of what a worker process works on at once, what may wait for unresponsive models; all but one
    #: of its places at the most. Where there is one place only, they have it in turns.
    silent_concurrency: Count = 8
    #: Model calls that one worker process makes at once for one summary tree.
    build_concurrency: Count = 32
    #: Model calls that one worker process makes at once for one answer that is browsed.
    browse_concurrency: Count = 8
    #: How often a worker says that it lives.
    heartbeat_seconds: Seconds = 5.0
    #: After this silence a worker counts as dead, and what it had in hand is freed.
    dead_after_seconds: Seconds = 15.0
    #: How often any worker looks for dead ones.
    sweep_seconds: Seconds = 1.0
    #: How often a worker that has places free looks for work that it was not told of.
    reconcile_seconds: Seconds = 2.0
    #: Tries of a step before its memory stalls (or skips it).
    step_tries: Count = 5
    #: Wait before the second try of a step, or of words or vectors of a session, by chance up
    #: to a half less; doubles with each further one.
    step_backoff_seconds: Seconds = 1.0
    #: How long an answer that was begun is made on when all clients have left who waited for it:
    #: time to connect again. Then it is abandoned until somebody resumes it.
    abandoned_answer_seconds: Annotated[float, Field(ge=1, le=86_400)] = 60.0
    #: How long a PRISM memory that says no `linger` waits for more while all that waits to be
    #: read is messages; 0: it does not. Reads that wait, questions and FlushMemory end the wait.
    message_linger_seconds: Annotated[float, Field(ge=0, le=3600)] = 10.0
    #: How long a worker stays with one memory before others get their turn.
    drain_seconds: Seconds = 30.0
    #: How often a process probes its database; it is not ready behind three failures in a row,
    #: and ready again behind two successes.
    probe_seconds: Seconds = 1.0
    #: How long `work` and `serve` wait for the database when they start.
    start_seconds: Seconds = 30.0
    #: How long `work` and `serve` may finish what they began when stopped.
    stop_seconds: Seconds = 30.0

    #: Connections to the database of one process.
    pool_size: Count = 10
    #: What is logged: this, and what weighs more.
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        BeforeValidator(lambda level: level.lower() if isinstance(level, str) else level),
    ] = "info"
    #: One JSON object a line, or lines for people.
    log_format: Literal["json", "console"] = "json"
    #: When a log file of `up` has so many bytes it is put aside, in place of the one before: of
    #: each server and process there are two files of about that size at most.
    log_file_bytes: Annotated[int, Field(ge=64 * 1024)] = 16 * 1024 * 1024

    limits: Limits = Field(default_factory=Limits)

    @property
    def is_pooled(self) -> bool:
        """Whether a connection to the database is another one for each transaction."""
        return self.database_pooler == "transaction"
