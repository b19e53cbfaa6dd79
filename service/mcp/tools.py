"""What the tools are called, what they take, and what models read about them.

Clients put the list into each prompt, so it is short, and its bytes never depend on a setting
other than which tools are served: a provider's prefix cache keeps it.
"""

from collections.abc import Collection, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from mcp_types import Tool, ToolAnnotations

from service.settings.mcp_tools import TOOLS

#: Characters of an argument that is a text.
MAX_TEXT_CHARACTERS = 100_000
#: Characters of a query, a path or a reason.
MAX_LINE_CHARACTERS = 4_000
#: The tokens that a recall returns when the model does not say, and at most.
RECALL_TOKENS = 1_000
MAX_RECALL_TOKENS = 20_000
#: Chunks that one call of `forget` removes.
MAX_FORGOTTEN = 20
#: Fewer characters would match too much.
MIN_FORGOTTEN_CHARACTERS = 3
#: Characters of what a client sent, in an error.
_SHOWN = 300

_PATH = {"type": "string", "description": "Entry, as recall or get_memory shows it"}
_MEMORY = {"type": "string", "description": "Default: default"}


def _tool(
    name: str,
    description: str,
    properties: Mapping[str, Any],
    *required: str,
    changes: bool = False,
    destroys: bool = False,
) -> Tool:
    schema: dict[str, Any] = {"type": "object", "properties": dict(properties)}
    if required:
        schema["required"] = list(required)
    schema["additionalProperties"] = False
    hints = (
        ToolAnnotations(read_only_hint=False, destructive_hint=destroys, open_world_hint=False)
        if changes
        else ToolAnnotations(read_only_hint=True, open_world_hint=False)
    )
    return Tool(name=name, description=description, input_schema=schema, annotations=hints)


_ALL = (
    _tool(
        "remember",
        "Store a fact, preference, decision or event for later conversations. Durable when it"
        " returns. One self-contained statement per call; no secrets.",
        {
            "text": {"type": "string"},
            "wait": {"type": "boolean", "description": "Also wait until memories have read it"},
        },
        "text",
        changes=True,
    ),
    _tool(
        "recall",
        "Find what is remembered about a question or topic. Call it before answering what may"
        " depend on earlier conversations.",
        {
            "query": {"type": "string"},
            "tokens": {"type": "integer", "description": f"Budget, default {RECALL_TOKENS}"},
        },
        "query",
    ),
    _tool(
        "get_memory",
        "Read the structured summary of all that is remembered, or one entry of it.",
        {"path": _PATH, "memory": _MEMORY},
    ),
    _tool(
        "why",
        "Show the sources of an entry and how it changed, or the full text at a [position].",
        {"path": _PATH, "position": {"type": "integer"}, "memory": _MEMORY},
    ),
    _tool(
        "forget",
        "Erase what the user asks to forget, with all that was derived from it. Cannot be undone:"
        " use dry_run first.",
        {
            "text": {"type": "string", "description": "Erase all that contains it"},
            "positions": {
                "type": "array",
                "items": {"type": "integer"},
                "description": f"At most {MAX_FORGOTTEN}",
            },
            "dry_run": {"type": "boolean", "description": "Only show what would go"},
        },
        changes=True,
        destroys=True,
    ),
    _tool(
        "list_memories",
        "List the memories of this session, and how far each has read.",
        {},
    ),
    _tool(
        "edit_memory",
        "Set an entry by hand, or remove it if no value is given. Undone by rollback_memory.",
        {"path": _PATH, "value": {}, "memory": _MEMORY},
        "path",
        changes=True,
    ),
    _tool(
        "rollback_memory",
        "Restore the state of an earlier revision, as a new one.",
        {"revision": {"type": "integer"}, "memory": _MEMORY},
        "revision",
        changes=True,
    ),
)
_BY_NAME = {one.name: one for one in _ALL}
assert tuple(_BY_NAME) == TOOLS, "the settings name the tools that there are, in their order"
_VALIDATORS = {name: Draft202012Validator(one.input_schema) for name, one in _BY_NAME.items()}


class WrongArguments(Exception):
    """Arguments that a tool does not take; the message says what it takes."""


def listed(names: Collection[str]) -> list[Tool]:
    """Returns the tools of these names, in the one order that they have."""
    return [_BY_NAME[name] for name in TOOLS if name in names]


def taken(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments, whole numbers as integers.

    Raises WrongArguments if the tool does not take them.
    """
    for key, value in arguments.items():
        # First, since a validator needs seconds for the numbers that a request has room for.
        if key != "value" and isinstance(value, list) and len(value) > MAX_FORGOTTEN:
            raise WrongArguments(f"{key} has {len(value)} items: send at most {MAX_FORGOTTEN}")
    for error in _VALIDATORS[name].iter_errors(dict(arguments)):
        where = "".join(f"{one}: " for one in error.absolute_path)
        raise WrongArguments(f"{where}{error.message[:_SHOWN]}; {_takes(name)}")
    return {key: value if key == "value" else _read(key, value) for key, value in arguments.items()}


def _read(key: str, value: Any) -> Any:
    """Returns an argument of the right type. Raises WrongArguments if it is out of bounds."""
    if isinstance(value, list):
        return [_read(key, one) for one in value]
    if isinstance(value, float):
        # JSON Schema takes 1.0 for an integer.
        value = int(value)
    if isinstance(value, int) and abs(value) >= 2**63:
        raise WrongArguments(f"{key} is no number of 64 bits: send one that was shown")
    if isinstance(value, str):
        limit = MAX_TEXT_CHARACTERS if key == "text" else MAX_LINE_CHARACTERS
        if len(value) > limit:
            raise WrongArguments(f"{key} has {len(value)} characters: send at most {limit}")
    return value


def _takes(name: str) -> str:
    schema = _BY_NAME[name].input_schema
    required = schema.get("required", ())
    shown = [f"{one} (required)" if one in required else one for one in schema["properties"]]
    return f"{name} takes {', '.join(shown) or 'no arguments'}"
