"""Edits: changes of a memory that are made by hand, as a caller writes them."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from palimpsest.v1 import edits_pb2, memories_pb2

_OPS = {
    "put": memories_pb2.AMENDMENT_OP_UNSPECIFIED,
    "add": memories_pb2.AMENDMENT_OP_ADD,
    "update": memories_pb2.AMENDMENT_OP_UPDATE,
    "remove": memories_pb2.AMENDMENT_OP_REMOVE,
}


@dataclass(frozen=True, slots=True)
class Edit:
    """One change; made by `put`, `add`, `update` or `remove`.

    A path is $['topics']['museum'][0], $.'topics'.'museum'[0] or /topics/museum/0.
    """

    op: Literal["put", "add", "update", "remove"]
    path: str
    #: What JSON can say, and the schema allows there; None for "remove".
    value: Any

    @classmethod
    def put(cls, path: str, value: Any) -> "Edit":
        """The path has the value then, whether there was one or not."""
        return cls("put", path, value)

    @classmethod
    def add(cls, path: str, value: Any) -> "Edit":
        """As `put`; it is marked as corrected when the path had a value."""
        return cls("add", path, value)

    @classmethod
    def update(cls, path: str, value: Any) -> "Edit":
        """As `put`; it is marked as corrected when the path had no value."""
        return cls("update", path, value)

    @classmethod
    def remove(cls, path: str) -> "Edit":
        """The path is gone then; elements behind it in a list move up."""
        return cls("remove", path, None)

    def message(self) -> edits_pb2.Edit:
        """The edit as the proto has it. Raises ValueError for a value that is no JSON."""
        if self.op == "remove":
            return edits_pb2.Edit(op=_OPS[self.op], path=self.path)
        try:
            _check_keys(self.value)
            text = json.dumps(self.value, ensure_ascii=False, allow_nan=False)
            text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the value for {self.path} is no JSON: {error}") from error
        return edits_pb2.Edit(op=_OPS[self.op], path=self.path, value_json=text)


def _check_keys(value: Any) -> None:
    """Refuses keys that `json` would turn into texts: two of them could become one."""
    if isinstance(value, dict):
        for key, child in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is no text")
            _check_keys(child)
    elif isinstance(value, list | tuple):
        for child in value:
            _check_keys(child)
