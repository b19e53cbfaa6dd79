"""What a client may put into each method: a request with places for ids.

`$name` stands for an id, which the test replaces by one of another tenant, or by one that never
existed. Fields of these names have a place in every method; the others are said here.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from service.rpc.pipeline import REGISTER

#: Names of fields that hold an id or a token wherever they are.
PLACES = {
    *("session", "memory", "other_memory", "answer", "erasure", "operation", "tenant"),
    *("page_token", "resume_token", "request_id", "api_key", "principal", "producer_id"),
    *("at_least", "threads", "excluded_threads", "sources", "memories", "answers", "etag"),
    *("rebuilt_from", "id", "read_token", "export_id", "thread", "source", "replaces"),
}
#: Text and numbers that name nothing that is stored.
CONTENT = {
    *("reason", "key", "value"),
    *("language", "header", "data", "text", "role", "observation", "thought", "action", "digest"),
    *("query", "path_prefix", "path", "schema_source", "json_schema", "task", "question"),
    *("final_task", "model", "navigation_model", "pinned", "cause", "message", "value_json"),
    *("node", "parent", "comment", "domain", "example_query", "response_schema", "options"),
    *("expected", "check_line"),
    *("first_day", "last_day", "display_name", "session_prefix", "created_by", "traceparent"),
}
SCHEMA = "class N:\n    topics: list[str]\n"
MASK = "updateMask"
#: Requests, where the names of fields do not say enough. Ids of resources are `id` there.
REQUESTS: Mapping[str, Mapping[str, Any]] = {
    "CreateSession": {"session": {"id": "$session"}},
    "UpdateSession": {"session": {"id": "$session"}, MASK: "metadata"},
    "ExportSession": {"session": "$session"},
    "ImportSession": {"open": {"session": "$session", "header": "e30="}},
    "Append": {"session": "$session", "chunks": [{"text": "x"}]},
    "AppendChunks": {"open": {"session": "$session", "producerId": "$producer_id", "epoch": 1}},
    "RedactChunks": {
        "session": "$session",
        "positions": {"ranges": [{"first": "1", "last": "1"}]},
    },
    "ListChunks": {"session": "$session", "filter": {"threads": ["$thread"]}},
    "SearchChunks": {
        "session": "$session",
        "query": "harbour",
        "consistency": {"atLeast": "$at_least"},
    },
    "SearchMemories": {
        "session": "$session",
        "query": "harbour",
        "filter": {"memories": ["$memory"]},
    },
    "Recall": {"session": "$session", "query": "harbour", "memories": ["$memory"]},
    "CreateMemory": {
        "memory": {"session": "$session", "id": "$memory", "prism": {"schemaSource": SCHEMA}}
    },
    "UpdateMemory": {
        "memory": {"session": "$session", "id": "$memory", "prism": {"model": ""}},
        MASK: "prism.model",
    },
    "EditMemory": {
        "session": "$session",
        "memory": "$memory",
        "edits": [{"path": "$['topics']", "valueJson": "[]"}],
    },
    "RollbackMemory": {"session": "$session", "memory": "$memory", "revision": 0},
    "RebuildMemory": {
        "session": "$session",
        "memory": "$memory",
        "newMemory": {"session": "$session", "id": "rebuilt"},
    },
    "DiffMemories": {"session": "$session", "memory": "$memory", "otherMemory": "$other_memory"},
    "GetProvenance": {"session": "$session", "memory": "$memory", "path": "$['topics']"},
    "GenerateSchema": {"session": "$session", "domain": "towns", "exampleQuery": "which?"},
    "CheckSchema": {"schemaSource": SCHEMA},
    "Ask": {"session": "$session", "memory": "$memory", "query": "When?"},
    "AskMany": {"questions": [{"session": "$session", "memory": "$memory", "query": "When?"}] * 2},
    "RateAnswer": {
        "session": "$session",
        "answer": "$answer",
        "rating": {"verdict": "VERDICT_GOOD"},
    },
    "ExportTrajectories": {"session": "$session", "memory": "$tree", "answers": ["$answer"]},
    # Tokens of pages are tried of the tree's answer: others have no events.
    "ListTrajectoryEvents": {"session": "$session", "answer": "$navigated"},
    "ListUsage": {"session": "$session", "groupBy": ["GROUPING_PURPOSE"]},
    "GetNavigationStatistics": {"session": "$session", "memory": "$tree"},
    "SetBudget": {
        "budget": {
            "session": "$session",
            "memory": "$memory",
            "period": "BUDGET_PERIOD_DAY",
            "limitTokens": "5",
        }
    },
    "DeleteBudget": {
        "session": "$session",
        "memory": "$memory",
        "period": "BUDGET_PERIOD_TOTAL",
    },
    "SealTree": {"session": "$session", "memory": "$tree"},
    "GetTree": {"session": "$session", "memory": "$tree"},
    "GetNode": {"session": "$session", "memory": "$tree", "node": "0.1"},
    "ListNodes": {"session": "$session", "memory": "$tree", "level": 0},
    "GetNodeText": {"session": "$session", "memory": "$tree", "node": "0.1"},
    "GetWorkingContext": {"session": "$session", "memory": "$state"},
    "ListStateVectors": {"session": "$session", "memory": "$state"},
    "CreateTenant": {"tenant": {"id": "$tenant"}},
    "UpdateTenant": {"tenant": {"id": "$tenant"}, MASK: "displayName"},
    "UpdateQuota": {"quota": {"tenant": "$tenant", "sessions": "5"}, MASK: "sessions"},
    "AllowText": {"session": "$session", "id": "$kept_out"},
    "CreateApiKey": {"tenant": "$tenant", "apiKey": {"scopes": ["SCOPE_READ"]}},
    "RotateApiKey": {"tenant": "", "apiKey": "$api_key"},
    "RevokeApiKey": {"tenant": "", "apiKey": "$api_key"},
}
#: Places that are tried besides, one at a time: without them a request is right as well.
OPTIONAL = ("page_token", "request_id", "resume_token", "principal")


def methods() -> list[MethodDescriptor]:
    """Returns every method of the API."""
    return [method for _, service in REGISTER.values() for method in service.methods]


def texts(kind: Descriptor, seen: frozenset[str] = frozenset()) -> Iterator[FieldDescriptor]:
    """Yields the fields of a message, at any depth, that hold text or bytes."""
    for field in kind.fields:
        inner = field.message_type
        if inner is None:
            if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
                yield field
        elif inner.full_name.startswith("palimpsest.") and inner.full_name not in seen:
            yield from texts(inner, seen | {inner.full_name})


def template(method: MethodDescriptor) -> dict[str, Any]:
    """Returns the request of a method with its places."""
    if method.name in REQUESTS:
        return dict(REQUESTS[method.name])
    found = {}
    for field in method.input_type.fields:
        is_place = field.type == FieldDescriptor.TYPE_STRING and field.name in PLACES
        if is_place and field.name not in OPTIONAL:
            found[field.json_name] = f"${field.name}"
    return found


def places(value: Any) -> set[str]:
    """Returns the places in a template."""
    if isinstance(value, str):
        return {value[1:]} if value.startswith("$") and value[1:].isidentifier() else set()
    if isinstance(value, Mapping):
        return set().union(*map(places, value.values()))
    return set().union(*map(places, value)) if isinstance(value, list) else set()


def filled(value: Any, ids: Mapping[str, str]) -> Any:
    """Returns a template with ids in its places."""
    if isinstance(value, str):
        return ids[value[1:]] if places(value) else value
    if isinstance(value, Mapping):
        return {name: filled(inner, ids) for name, inner in value.items()}
    return [filled(inner, ids) for inner in value] if isinstance(value, list) else value
