"""Every name of a metric, a span and an attribute; docs/reference/telemetry.md has their table.

Those of OpenTelemetry's semantic conventions come from its package, but for what it says has
moved to the conventions of generative AI (open-telemetry/semantic-conventions-genai), of which
there is no package: those are written out. No attribute of a metric names a tenant, a session, a
memory or a text: there may be any number of them.
"""

from typing import Final

from opentelemetry.semconv._incubating.attributes import (
    db_attributes as incubating_db,
)
from opentelemetry.semconv._incubating.attributes import (
    messaging_attributes,
    process_attributes,
    rpc_attributes,
)
from opentelemetry.semconv._incubating.metrics import db_metrics as incubating_db_metrics
from opentelemetry.semconv._incubating.metrics import messaging_metrics, rpc_metrics
from opentelemetry.semconv.attributes import db_attributes, error_attributes, service_attributes
from opentelemetry.semconv.metrics import db_metrics


class Metric:
    """Names of metrics. A comment gives the unit, and the attributes in braces."""

    # The API.

    #: Seconds, {rpc.system.name, rpc.method, rpc.response.status_code}: each call, streams whole.
    RPC_SERVER_CALL_DURATION: Final = rpc_metrics.RPC_SERVER_CALL_DURATION
    #: Calls under way, streams among them.
    CALLS_IN_FLIGHT: Final = "palimpsest.calls.in_flight"

    # The database.

    #: Seconds, {db.system.name, db.operation.name, error.type}: each transaction, with the wait
    #: for its connection.
    DB_CLIENT_OPERATION_DURATION: Final = db_metrics.DB_CLIENT_OPERATION_DURATION
    #: Connections, {db.client.connection.state, db.client.connection.pool.name}.
    DB_CLIENT_CONNECTION_COUNT: Final = incubating_db_metrics.DB_CLIENT_CONNECTION_COUNT
    #: Connections that there may be, {db.client.connection.pool.name}.
    DB_CLIENT_CONNECTION_MAX: Final = incubating_db_metrics.DB_CLIENT_CONNECTION_MAX
    #: Writes that a key or a check refused, {constraint}.
    DATABASE_REFUSED: Final = "palimpsest.database.refused"

    # Steps.

    #: Seconds, {messaging.system, messaging.operation.name, messaging.destination.name,
    #: error.type}: a try of a step behind its claim, to its commit or failure; of a tree the
    #: making of a node.
    MESSAGING_PROCESS_DURATION: Final = messaging_metrics.MESSAGING_PROCESS_DURATION
    #: Committed changes of memories, {kind} of the change.
    STEPS: Final = "palimpsest.steps"
    #: Tries of steps that failed.
    STEPS_FAILED: Final = "palimpsest.steps.failed"
    #: Results that were thrown away: another worker has the memory.
    STEPS_FENCED: Final = "palimpsest.steps.fenced"
    #: Steps that were put off: a budget is used up.
    STEPS_HELD: Final = "palimpsest.steps.held"
    #: Steps that were put off: their model gave no reply.
    STEPS_WAITED: Final = "palimpsest.steps.waited"
    #: Seconds, {kind} of memory: from the append of a step's oldest chunk to the step's commit.
    APPLIED: Final = "palimpsest.applied"
    #: Memories, answers and drafts that went on when their model replied again.
    RECOVERY_WOKEN: Final = "palimpsest.recovery.woken"

    # Metrics of the whole deployment, measured by each API server.

    #: Memories, {state}: stalled, held, behind.
    MEMORIES: Final = "palimpsest.memories"
    #: Chunks that memories have not read, {statistic}: sum, p95, max.
    LAG_CHUNKS: Final = "palimpsest.lag.chunks"
    #: Seconds that the oldest chunk of each has waited, {statistic}: p95, max.
    LAG_SECONDS: Final = "palimpsest.lag.seconds"
    #: Items, {state}: queued, running.
    QUEUE_ITEMS: Final = "palimpsest.queue.items"
    #: Seconds that the oldest item has waited, {statistic}: max.
    QUEUE_SECONDS: Final = "palimpsest.queue.seconds"

    # Model calls.

    #: Seconds, {gen_ai.operation.name, gen_ai.provider.name, gen_ai.request.model,
    #: palimpsest.purpose, error.type}: each try.
    GEN_AI_CLIENT_OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
    #: Tokens of a call that was replied to, {as above, gen_ai.token.type}: input, output.
    GEN_AI_CLIENT_TOKEN_USAGE: Final = "gen_ai.client.token.usage"
    #: Calls in the ledger, {model, purpose, outcome}.
    LLM_CALLS: Final = "palimpsest.llm.calls"
    #: Tokens in the ledger, {model, purpose, kind}.
    LLM_TOKENS: Final = "palimpsest.llm.tokens"
    #: Tokens that were cached otherwise than predicted, {model, purpose, class}.
    LLM_RESIDUAL_TOKENS: Final = "palimpsest.llm.residual.tokens"
    #: US dollars, {model, purpose}: prices of calls that have one.
    LLM_COST: Final = "palimpsest.llm.cost"
    #: Calls under way.
    LLM_CALLS_IN_FLIGHT: Final = "palimpsest.llm.calls.in_flight"
    #: Replies that were found in the ledger, {model}.
    LLM_REPLAYS: Final = "palimpsest.llm.replays"
    #: Calls that waited for one with the same beginning, {model, outcome}.
    LLM_WAITS: Final = "palimpsest.llm.waits"
    #: Items that gave their place up: an unresponsive model held it.
    LLM_LET_GO: Final = "palimpsest.llm.let_go"
    #: Forms of requests that a model refused and was asked without, {model, form}.
    LLM_FORMS_REFUSED: Final = "palimpsest.llm.forms_refused"
    #: Times that a model was begun to be left alone, {model, fault}.
    LLM_CIRCUITS_OPENED: Final = "palimpsest.llm.circuits.opened"
    #: Places that are left alone now, as this process knows, {model, fault}.
    LLM_CIRCUITS_OPEN: Final = "palimpsest.llm.circuits.open"

    # Search.

    #: Chunks whose words were written.
    INDEX_WORDS: Final = "palimpsest.index.words"
    #: Tries of that that failed.
    INDEX_WORDS_FAILURES: Final = "palimpsest.index.words_failures"
    #: Chunks whose vectors were written.
    INDEX_VECTORS: Final = "palimpsest.index.vectors"
    #: Tries of that that failed.
    INDEX_FAILURES: Final = "palimpsest.index.failures"

    # Retention.

    #: What retention removed, {kind}: session, chunk, answer, trajectory, call,
    #: history (revisions that it went through).
    RETENTION_REMOVED: Final = "palimpsest.retention.removed"

    # Guards.

    #: What guards kept from happening, {guard}.
    GUARDS: Final = "palimpsest.guards"

    # The process.

    #: Seconds that the event loop came late to what was due.
    LOOP_DELAY: Final = "palimpsest.loop.delay"
    #: Whether the process can do its work: 1 or 0.
    READY: Final = "palimpsest.ready"
    #: Whether Redis took the last commands: 1 or 0; without it predictions are worse.
    PREFIX_CACHE_REACHABLE: Final = "palimpsest.prefix_cache.reachable"
    #: Whether a worker is connected to its executor: 1 or 0.
    EXECUTOR_REACHABLE: Final = "palimpsest.executor.reachable"


class SpanName:
    """Names of spans; docs/reference/tracing.md has their table.

    A call of the API has its full method, what is taken from a table `process` and its kind, a
    try of a model call `chat` and the model, and what is done to a memory one of GenAiOperation.
    """

    #: An append, from its message to its commit.
    SEND: Final = "send log"
    #: A model call with all that it waits for; each try has a span of its own within.
    CALL: Final = "palimpsest.call"
    #: A transaction; its name follows.
    TRANSACTION: Final = "transaction"
    #: A revision that is sent to watching clients.
    WATCH_EVENT: Final = "palimpsest.watch.event"


class Attribute:
    """Names of attributes."""

    # Names of OpenTelemetry's semantic conventions.

    RPC_SYSTEM_NAME: Final = rpc_attributes.RPC_SYSTEM_NAME
    RPC_METHOD: Final = rpc_attributes.RPC_METHOD
    RPC_RESPONSE_STATUS_CODE: Final = rpc_attributes.RPC_RESPONSE_STATUS_CODE
    DB_SYSTEM_NAME: Final = db_attributes.DB_SYSTEM_NAME
    DB_OPERATION_NAME: Final = db_attributes.DB_OPERATION_NAME
    DB_CLIENT_CONNECTION_STATE: Final = incubating_db.DB_CLIENT_CONNECTION_STATE
    DB_CLIENT_CONNECTION_POOL_NAME: Final = incubating_db.DB_CLIENT_CONNECTION_POOL_NAME
    ERROR_TYPE: Final = error_attributes.ERROR_TYPE
    MESSAGING_SYSTEM: Final = messaging_attributes.MESSAGING_SYSTEM
    MESSAGING_OPERATION_NAME: Final = messaging_attributes.MESSAGING_OPERATION_NAME
    MESSAGING_OPERATION_TYPE: Final = messaging_attributes.MESSAGING_OPERATION_TYPE
    MESSAGING_BATCH_MESSAGE_COUNT: Final = messaging_attributes.MESSAGING_BATCH_MESSAGE_COUNT
    MESSAGING_DESTINATION_NAME: Final = messaging_attributes.MESSAGING_DESTINATION_NAME
    SERVICE_NAME: Final = service_attributes.SERVICE_NAME
    SERVICE_VERSION: Final = service_attributes.SERVICE_VERSION
    SERVICE_INSTANCE_ID: Final = service_attributes.SERVICE_INSTANCE_ID
    PROCESS_RUNTIME_VERSION: Final = process_attributes.PROCESS_RUNTIME_VERSION
    GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
    GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
    GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
    GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
    GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
    GEN_AI_RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
    GEN_AI_TOKEN_TYPE: Final = "gen_ai.token.type"
    GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
    GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
    GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
    #: The key of the memory, or of the session whose log is searched; of spans only.
    GEN_AI_MEMORY_STORE_ID: Final = "gen_ai.memory.store.id"

    # Ours, of metrics.

    #: The name of a model, or "other" beyond the first hundred.
    MODEL: Final = "model"
    #: What a call is for: revise, answer …
    PURPOSE: Final = "purpose"
    #: The same beside attributes of the conventions.
    PALIMPSEST_PURPOSE: Final = "palimpsest.purpose"
    #: How something ended.
    OUTCOME: Final = "outcome"
    #: The kind of a memory, a change or a token.
    KIND: Final = "kind"
    #: The class of a residual.
    CLASS: Final = "class"
    #: The state of what is counted.
    STATE: Final = "state"
    #: Which statistic: sum, p95, max.
    STATISTIC: Final = "statistic"
    #: What kept something from happening.
    GUARD: Final = "guard"
    #: What is wrong with a model.
    FAULT: Final = "fault"
    #: What a request asks for in a form that some models refuse.
    FORM: Final = "form"
    #: A key or a check of the database.
    CONSTRAINT: Final = "constraint"

    # Ours, of spans.

    #: The key of a session, which is not its name.
    SESSION_KEY: Final = "palimpsest.session_key"
    #: The revision that a step makes.
    REVISION: Final = "palimpsest.revision"
    #: The level of a state's vectors.
    LEVEL: Final = "palimpsest.level"
    #: The cursor before a step.
    FROM_POSITION: Final = "palimpsest.from_position"
    #: The last position that a step reads.
    TO_POSITION: Final = "palimpsest.to_position"
    #: The kind of a change: step, fold …
    CHANGE: Final = "palimpsest.change"
    #: Whether the reply to a call was in the ledger already.
    REPLAYED: Final = "palimpsest.call.replayed"


class MessagingOperation:
    """Values of messaging.operation.name and messaging.operation.type."""

    SEND: Final = "send"
    STEP: Final = "step"
    PROCESS: Final = "process"


class GenAiOperation:
    """Values of gen_ai.operation.name."""

    CHAT: Final = "chat"
    EMBEDDINGS: Final = "embeddings"
    CREATE_MEMORY_STORE: Final = "create_memory_store"
    DELETE_MEMORY_STORE: Final = "delete_memory_store"
    SEARCH_MEMORY: Final = "search_memory"
    UPDATE_MEMORY: Final = "update_memory"
    DELETE_MEMORY: Final = "delete_memory"
