"""Reads messages as OpenAI's, Anthropic's and compatible clients write them.

Each message becomes parts: what was said, thoughts, calls of tools, and their results.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Types of parts that are text, by the field that has it.
_TEXTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "summary_text": "text",
    "refusal": "refusal",
}
#: Types of items and blocks that call a tool. Results end with one of the others.
_CALLS = ("tool_use", "function_call", "custom_tool_call", "tool_call")
_RESULTS = ("tool_result", "call_output")
#: Fields of a message besides its content that hold what is no text.
_ATTACHED = ("audio", "images", "files", "attachments")
#: Fields of a message that is an object without `model_dump`.
_ATTRIBUTES = (
    *("type", "role", "content", "name", "refusal", "tool_calls", "tool_call_id"),
    *("function_call", *_ATTACHED, "thread", "source", "occurred_at", "metadata"),
)
#: What a type of part is, by a word in its name.
_NOUNS = {
    "image": "an image",
    "audio": "audio",
    "video": "a video",
    "file": "a file",
    "document": "a document",
}


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of what was said."""

    text: str
    #: It continues the sentence of the pieces before and after it.
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Thought:
    """What the model thought, and did not say."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool."""

    #: Empty where the library has none.
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool returned."""

    #: Id and name of its call; empty where the library has none.
    id: str
    name: str
    text: str


Part = Said | Thought | Call | Result


def fields_of(item: Any) -> Mapping[str, Any] | None:
    """Returns a message, an item or a block as a mapping; None for what is none of them."""
    if isinstance(item, Mapping):
        return item
    if isinstance(item, type):
        return None
    for name in ("model_dump", "to_dict"):
        dump = getattr(item, name, None)
        if callable(dump):
            dumped = dump()
            return dumped if isinstance(dumped, Mapping) else None
    if not hasattr(item, "role"):
        return None
    return {name: getattr(item, name) for name in _ATTRIBUTES if hasattr(item, name)}


def parts_of(given: Mapping[str, Any]) -> Iterator[Part]:
    """Yields the parts of a message, in order.

    Raises ValueError and TypeError that name the part, from 1, for what is no text.
    """
    for name in _ATTACHED:
        if given.get(name):
            raise ValueError(_refused(name))
    thought = given.get("reasoning_content") or given.get("reasoning")
    if isinstance(thought, str):
        yield Thought(thought)
    yield from _content(given.get("content"))
    if given.get("refusal"):
        yield Said(_text(given["refusal"], "its refusal"))
    for number, call in enumerate(_list(given.get("tool_calls"), "tool_calls"), start=1):
        yield _call(call, f"tool call {number}")
    if given.get("function_call"):
        yield _call(given["function_call"], "its function_call")


def item_of(given: Mapping[str, Any]) -> Call | Result | None:
    """Returns what is no message but an item beside messages, as OpenAI's Responses API has them.

    None for other mappings. Raises as `parts_of`.
    """
    kind = given.get("type")
    if not isinstance(kind, str):
        return None
    if kind in _CALLS:
        return _call(given, "it")
    if kind.endswith(_RESULTS):
        return result_of(given)
    if kind.endswith("_call"):
        # A tool of the provider: what it returned is not in the item.
        raise ValueError(_refused(kind))
    return None


def result_of(given: Mapping[str, Any], where: str = "") -> Result:
    """Returns the result in a message of a tool, an item or a block. Raises as `parts_of`."""
    content = given["output"] if "output" in given else given.get("content")
    texts = [one.text for one in _content(content, where) if isinstance(one, Said)]
    failed = given.get("is_error") or given.get("status") == "error"
    names = ("tool_call_id", "tool_use_id", "call_id")
    return Result(
        id=str(next((given[name] for name in names if given.get(name)), "")),
        name=str(given.get("name") or given.get("tool_name") or ""),
        text=("Error: " if failed else "") + "\n".join(texts),
    )


def _content(content: Any, where: str = "") -> Iterator[Part]:
    if content is None:
        return
    if isinstance(content, str):
        yield Said(content)
        return
    parts = [content] if isinstance(content, Mapping) else _list(content, f"{where}its content")
    for number, part in enumerate(parts, start=1):
        at = f"{where}part {number}"
        if isinstance(part, str):
            yield Said(part)
        else:
            yield from _block_parts(_block(part, at), at)


def _block_parts(block: Mapping[str, Any], where: str) -> Iterator[Part]:
    kind = str(block.get("type", "text"))
    if kind in _TEXTS:
        joined = bool(block.get("citations"))
        yield Said(_text(block.get(_TEXTS[kind]), where), joined=joined)
    elif kind == "thinking":
        yield Thought(_text(block.get("thinking"), where))
    elif kind == "web_search_result":
        yield Said(f"{block.get('title')} ({block.get('url')})")
    elif kind.endswith("tool_use"):
        yield _call(block, where)
    elif kind.endswith("tool_result"):
        yield result_of(block, f"{where}, ")
    elif kind != "redacted_thinking":
        raise ValueError(f"{where}: {_refused(kind)}")


def _call(given: Any, where: str) -> Call:
    call = _block(given, where)
    called = _block(call.get("function") or call.get("custom") or call, where)
    name = called.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where} has no name of a tool")
    named = (called.get(one) for one in ("arguments", "input", "args"))
    arguments = next((one for one in named if one is not None), "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, default=str)
    return Call(id=str(call.get("call_id") or call.get("id") or ""), name=name, arguments=arguments)


def _block(part: Any, where: str) -> Mapping[str, Any]:
    found = fields_of(part)
    if found is None:
        raise TypeError(f"{where} is of type {type(part).__name__}, not a mapping")
    return found


def _list(given: Any, what: str) -> Sequence[Any]:
    if given is None:
        return ()
    if not isinstance(given, list | tuple):
        raise TypeError(f"{what} must be a text or a list of parts, not {type(given).__name__}")
    return given


def _text(given: Any, where: str) -> str:
    if not isinstance(given, str):
        raise TypeError(f"{where} must be a text, not {type(given).__name__}")
    return given


def _refused(kind: str) -> str:
    noun = next((noun for word, noun in _NOUNS.items() if word in kind), "a part")
    return (
        f"{noun} ({kind}) is not remembered, only text is: put a text that describes it in its"
        " place, or leave it out"
    )
