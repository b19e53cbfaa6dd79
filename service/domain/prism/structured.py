"""Structured output: the JSON Schema of a revision, for models that keep to one.

It is the same for all memories: strings and a list of objects, all required, which every
provider takes. A value is JSON text. What belongs at which path is judged when the reply
is read.
"""

from typing import Any

from service.domain.prism.amendments import Op

#: Not to be changed: calls are known by its bytes.
REPLY_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "changes": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "op": {"type": "string", "enum": [op.value for op in Op]},
                    "path": {"type": "string"},
                    "value": {"type": "string"},
                },
                "required": ["op", "path", "value"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["changes"],
    "additionalProperties": False,
}
