"""Schemas as the client sends them and the service takes them."""

from typing import Any

from palimpsest import schema_fields
from service.domain.prism.schemas.json_source import parse_json_schema
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import Schema


def taken(schema: Any) -> Schema:
    """Returns what the service makes of it."""
    match schema_fields(schema):
        case {"schema_source": source}:
            return parse_source(source)
        case {"json_schema": text}:
            return parse_json_schema(text)
    raise AssertionError
