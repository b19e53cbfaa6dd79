"""Generates the OpenAPI document of the API over HTTP: `python -m tests.openapi`.

It follows from the proto: comments, the rules of protovalidate and the marks of required and output
fields. Rules in CEL that several fields share have a pattern here; the others are in the comments.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from buf.validate import validate_pb2
from google.api import field_behavior_pb2
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

from palimpsest.v1 import rules_pb2
from service.rpc.http.application import GRPC_ONLY
from service.rpc.pipeline import REGISTER
from tests import ROOT, proto

TARGET = ROOT / "service/rpc/http/openapi.json"
EVENTS = "text/event-stream"

_SIGNED = {"type": ["string", "integer"], "format": "int64"}
#: How protobuf's own messages are written in JSON.
WELL_KNOWN: Mapping[str, Mapping[str, Any]] = {
    "google.protobuf.Timestamp": {
        "type": "string",
        "format": "date-time",
        "examples": ["2026-11-30T12:00:00Z"],
    },
    "google.protobuf.Duration": {
        "type": "string",
        "pattern": r"^-?[0-9]{1,9}(\.[0-9]{1,9})?s$",
        "examples": ["1.5s"],
    },
    "google.protobuf.FieldMask": {
        "type": "string",
        "description": "Names of fields in lowerCamelCase, separated by commas.",
    },
    "google.protobuf.Empty": {"type": "object", "additionalProperties": False},
    "google.protobuf.Struct": {"type": "object"},
    "google.protobuf.Value": {},
}
INT32 = {"type": "integer", "format": "int32", "minimum": -(2**31), "maximum": 2**31 - 1}
SCALARS: Mapping[int, Mapping[str, Any]] = {
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "format": "byte", "contentEncoding": "base64"},
    FieldDescriptor.TYPE_DOUBLE: {"type": "number", "format": "double"},
    FieldDescriptor.TYPE_FLOAT: {"type": "number", "format": "float"},
    FieldDescriptor.TYPE_INT32: INT32,
    FieldDescriptor.TYPE_UINT32: INT32 | {"minimum": 0, "maximum": 2**32 - 1},
    FieldDescriptor.TYPE_INT64: _SIGNED,
    FieldDescriptor.TYPE_UINT64: _SIGNED,
}
#: Unicode's control and format characters up to U+FFFF: few tools know the pattern \\p{Cc}.
UNPRINTABLE = (
    r"\u0000-\u001f\u007f-\u009f\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e"
    r"\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
)
#: The rules of rules.proto.
SHARED: Mapping[str, Mapping[str, Any]] = {
    "id": {"pattern": f"^[^/{UNPRINTABLE}]*$", "maxLength": 256},
    "request_id": {"maxLength": 128},
    "no_nul": {},
    "model": {"maxLength": 256},
    "node_id": {"pattern": r"^([0-9]{1,3}[.][1-9][0-9]{0,17})?$"},
    "key_id": {"pattern": "^([a-z2-7]{16})?$"},
    "day": {"pattern": "^([0-9]{4}-[0-9]{2}-[0-9]{2})?$"},
}
#: A request of the methods that most programs begin with.
EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "CreateSession": {"session": {"id": "alice"}},
    "GetSession": {"session": "alice"},
    "ListSessions": {"pageSize": 20},
    "Append": {
        "session": "alice",
        "requestId": "turn-1",
        "chunks": [
            {"message": {"role": "user", "text": "I eat no nuts."}, "thread": "conversation-7"}
        ],
    },
    "ListChunks": {"session": "alice", "pageSize": 20},
    "Recall": {"session": "alice", "query": "What may she eat?", "maxTokens": 800},
    "SearchChunks": {"session": "alice", "query": "nuts"},
    "GetMemory": {"session": "alice", "memory": "default"},
    "WatchMemory": {"session": "alice", "memory": "default", "afterRevision": "0"},
    "Ask": {"session": "alice", "query": "What does Alice not eat?"},
}
ERROR = {
    "type": "object",
    "examples": [{"code": "not_found", "message": "there is no session 'bob'"}],
    "description": "Why a call failed, as the Connect protocol has it. `details` has at least a"
    " google.rpc.ErrorInfo, whose `reason` is one of ErrorReason; `debug` is its content in JSON.",
    "required": ["code", "message"],
    "properties": {
        "code": {"type": "string", "examples": ["not_found"]},
        "message": {"type": "string"},
        "details": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "type": {"type": "string"},
                    "value": {"type": "string"},
                    "debug": {"type": "object"},
                },
            },
        },
    },
}


class Document:
    """Collects the schemas that the methods of the API need."""

    def __init__(self, comments: Mapping[str, str]) -> None:
        self._comments = comments
        self.schemas: dict[str, Any] = {"Error": ERROR}

    def paths(self) -> Iterator[tuple[str, Any]]:
        """Yields each path with its operations."""
        for _, service in REGISTER.values():
            for method in service.methods:
                path = f"/{service.full_name}/{method.name}"
                if path not in GRPC_ONLY and not method.GetOptions().deprecated:
                    yield path, self._operations(method)

    def tags(self) -> Iterator[dict[str, str]]:
        """Yields the services, by which tools group the operations."""
        for _, service in REGISTER.values():
            comment = self._comments.get(service.full_name, "")
            yield {"name": service.name, "description": comment}

    def _operations(self, method: Any) -> dict[str, Any]:
        comment = self._comments.get(method.full_name, "")
        about: dict[str, Any] = {
            "tags": [method.containing_service.name],
            "summary": comment.partition(". ")[0].partition("\n")[0].rstrip("."),
            "description": comment,
            "responses": self._responses(method),
        }
        scope = rules_pb2.Scope.Name(method.GetOptions().Extensions[rules_pb2.required_scope])
        about["security"] = [{"key": [scope.removeprefix("SCOPE_").lower()]}]
        request = self._reference(method.input_type)
        usual = {"example": EXAMPLES[method.name]} if method.name in EXAMPLES else {}
        content = {"application/json": {"schema": request, **usual}}
        if method.client_streaming:
            content = {"application/connect+json": {"schema": request}}
        body = {"required": True, "content": content}
        found = {"post": {"operationId": method.name, **about, "requestBody": body}}
        safe = method.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS
        if safe:
            message = {"name": "message", "in": "query", "required": True}
            message |= {"content": content}
            found["get"] = {"operationId": f"{method.name}ByGet", **about, "parameters": [message]}
        return found

    def _responses(self, method: Any) -> dict[str, Any]:
        schema = self._reference(method.output_type)
        content: dict[str, Any] = {"application/json": {"schema": schema}}
        if method.server_streaming:
            content = {EVENTS: {"schema": _event(schema)}}
            content |= {"application/connect+json": {"schema": schema}}
        failed = {"schema": {"$ref": "#/components/schemas/Error"}}
        return {
            "200": {"description": "The response.", "content": content},
            "default": {
                "description": "The call failed.",
                "content": {"application/json": failed},
            },
        }

    def _reference(self, kind: Descriptor) -> dict[str, Any]:
        if kind.full_name in WELL_KNOWN:
            return dict(WELL_KNOWN[kind.full_name])
        name = kind.full_name.removeprefix("palimpsest.v1.")
        if name not in self.schemas:
            # Before its fields: messages may contain themselves.
            self.schemas[name] = {}
            self.schemas[name] = self._message(kind)
        return {"$ref": f"#/components/schemas/{name}"}

    def _message(self, kind: Descriptor) -> dict[str, Any]:
        found: dict[str, Any] = {
            "type": "object",
            "description": self._comments.get(kind.full_name, ""),
            "additionalProperties": False,
            "properties": {one.json_name: self._field(one) for one in kind.fields},
        }
        required = [one.json_name for one in kind.fields if _is_required(one)]
        if required:
            found["required"] = required
        choices = [self._choice(one) for one in kind.oneofs if not _is_optional(one)]
        if choices:
            found["allOf"] = choices
        return found

    def _choice(self, choice: Any) -> dict[str, Any]:
        """Returns that a message has at most one of some fields, or exactly one."""
        one_of: list[dict[str, Any]] = [{"required": [one.json_name]} for one in choice.fields]
        if not choice.GetOptions().Extensions[validate_pb2.oneof].required:
            one_of.append({"not": {"anyOf": list(one_of)}})
        return {"oneOf": one_of}

    def _field(self, field: FieldDescriptor) -> dict[str, Any]:
        rules = field.GetOptions().Extensions[validate_pb2.field]
        comment: dict[str, Any] = {"description": self._comments.get(field.full_name, "")}
        if field_behavior_pb2.OUTPUT_ONLY in field.GetOptions().Extensions[_BEHAVIOR]:
            comment["readOnly"] = True
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = self._value(field.message_type.fields_by_name["value"], rules.map.values)
            limit = {"maxProperties": rules.map.max_pairs} if rules.map.max_pairs else {}
            return {"type": "object", "additionalProperties": value, **limit, **comment}
        if field.is_repeated:
            items: dict[str, Any] = {
                "type": "array",
                "items": self._value(field, rules.repeated.items),
            }
            if rules.repeated.max_items:
                items["maxItems"] = rules.repeated.max_items
            if rules.repeated.min_items:
                items["minItems"] = rules.repeated.min_items
            return items | comment
        found = self._value(field, rules)
        if _is_required(field) and field.type == FieldDescriptor.TYPE_STRING:
            found.setdefault("minLength", 1)
        return found | comment

    def _value(self, field: FieldDescriptor, rules: Any) -> dict[str, Any]:
        if field.message_type is not None:
            return self._reference(field.message_type)
        if field.enum_type is not None:
            return self._enum(field.enum_type)
        return {**SCALARS[field.type], **_limits(field, rules)}

    def _enum(self, kind: EnumDescriptor) -> dict[str, Any]:
        name = kind.full_name.removeprefix("palimpsest.v1.")
        self.schemas[name] = {
            "type": "string",
            "description": self._comments.get(kind.full_name, ""),
            "enum": [one.name for one in kind.values],
        }
        return {"$ref": f"#/components/schemas/{name}"}


def _event(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of one event of a stream."""
    return {
        "type": "object",
        "description": "`data` is a message, or of the last event: nothing, or an Error.",
        "required": ["data"],
        "properties": {
            "event": {"type": "string", "enum": ["message", "end", "error"]},
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": message,
            },
        },
    }


_BEHAVIOR = field_behavior_pb2.field_behavior


def _is_required(field: FieldDescriptor) -> bool:
    options = field.GetOptions()
    return (
        field_behavior_pb2.REQUIRED in options.Extensions[_BEHAVIOR]
        and field.containing_oneof is None
    )


def _is_optional(choice: Any) -> bool:
    """Returns whether a oneof is the one that protoc makes of an `optional` field."""
    return len(choice.fields) == 1 and choice.name.startswith("_")


def _limits(field: FieldDescriptor, rules: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if field.type == FieldDescriptor.TYPE_STRING:
        text = rules.string
        for name, limits in SHARED.items():
            if text.Extensions[getattr(rules_pb2, name)]:
                found |= limits
        for rule, name in (("min_len", "minLength"), ("max_len", "maxLength")):
            if text.HasField(rule):
                found[name] = getattr(text, rule)
        if text.HasField("max_bytes"):
            found["maxLength"] = text.max_bytes
        if text.pattern:
            found["pattern"] = text.pattern
        if text.uuid:
            found["format"] = "uuid"
    elif field.type == FieldDescriptor.TYPE_INT32:
        number = rules.int32
        for rule, name, more in (("gte", "minimum", 0), ("gt", "minimum", 1)):
            if number.HasField(rule):
                found[name] = getattr(number, rule) + more
        for rule, name, more in (("lte", "maximum", 0), ("lt", "maximum", -1)):
            if number.HasField(rule):
                found[name] = getattr(number, rule) + more
    return found


def _comments() -> Mapping[str, str]:
    """Returns the comment of everything in the proto, by its full name."""
    described = descriptor_pb2.FileDescriptorSet()
    with tempfile.TemporaryDirectory() as folder:
        described.ParseFromString(proto.image(Path(folder) / "image.binpb").read_bytes())
    found: dict[str, str] = {}
    for file in described.file:
        for location in file.source_code_info.location:
            if location.leading_comments:
                found[_named(file, location.path)] = _joined(location.leading_comments)
    return found


def _named(file: descriptor_pb2.FileDescriptorProto, path: Any) -> str:
    """Returns the full name of what a path of numbers leads to."""
    names: list[str] = [file.package]
    at: Any = file
    for number, index in zip(path[::2], path[1::2], strict=False):
        within = getattr(at, at.DESCRIPTOR.fields_by_number[number].name)
        if not isinstance(within, Sequence) or not hasattr(within[index], "name"):
            # An option, or the name of something: it is no thing of its own.
            return ""
        at = within[index]
        names.append(at.name)
    return ".".join(names)


def _joined(comment: str) -> str:
    """Returns a comment whose paragraphs are lines."""
    paragraphs = "\n".join(line.strip() for line in comment.strip().splitlines()).split("\n\n")
    return "\n\n".join(" ".join(one.split("\n")) for one in paragraphs)


def generated() -> str:
    """Returns the document."""
    made = Document(_comments())
    paths = dict(made.paths())
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Palimpsest",
            "version": "v1",
            "summary": "A memory service for programs that use language models",
            "description": "The methods of the gRPC API by the Connect protocol: POST with JSON,"
            " and GET for those without side effects. Numbers of 64 bits are strings in responses.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": list(made.tags()),
        "paths": paths,
        "components": {
            "schemas": dict(sorted(made.schemas.items())),
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key, or a token of an OIDC issuer, where the server requires"
                    " authentication.",
                }
            },
        },
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def stale() -> bool:
    """Returns whether the document is not what the proto generates."""
    return not TARGET.exists() or TARGET.read_text() != generated()


def main() -> None:
    """Writes the document."""
    TARGET.write_text(generated())
    sys.stdout.write(f"{TARGET.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
