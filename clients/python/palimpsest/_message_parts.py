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
    "logs": "logs",
}
#: How the types of items and blocks end that call a tool, and of those that have its result.
_CALLS = ("tool_use", "tool_call", "function_call")
_RESULTS = ("tool_result", "call_output")
#: Calls without a name, and the field that says what to do.
_NAMELESS = {
    "code_interpreter_call": "code",
    "shell_call": "action",
    "local_shell_call": "action",
    "apply_patch_call": "operation",
}
#: Calls whose result is in the same item.
_WITH_RESULTS = ("mcp_call", "code_interpreter_call")
#: Items and blocks without words of the conversation. Other calls of a provider's tools are such,
#: too: what they returned is not in them.
_WORDLESS = frozenset(
    {
        *("reasoning", "redacted_thinking", "compaction", "item_reference"),
        *("mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
        *("tool_search_output", "additional_tools", "program", "program_output"),
    }
)
#: Fields of a message besides its content that hold what is no text.
_ATTACHED = ("audio", "images", "files", "attachments")
#: Fields of a message that is an object without `model_dump`.
_ATTRIBUTES = (
    *("type", "role", "content", "name", "refusal", "tool_calls", "tool_call_id"),
    *("function_call", *_ATTACHED, "thread", "source", "occurred_at", "metadata"),
)
#: What media are, by a word in the name of their type, or in that of the call that made them.
_MEDIA = {
    "image": "an image",
    "screenshot": "an image",
    "audio": "audio",
    "video": "a video",
}
#: What other types of parts are that are no text.
_NOUNS = {
    **_MEDIA,
    "file": "a file",
    "pdf": "a file",
    "upload": "a file",
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
    given_calls = enumerate(_list(given.get("tool_calls"), "tool_calls"), start=1)
    calls = [_call(call, f"tool call {number}") for number, call in given_calls]
    # LangChain repeats calls of the content, where arguments of a streamed reply are incomplete.
    by_id = {call.id: call for call in calls if call.id}
    for part in _content(given.get("content")):
        if isinstance(part, Call) and part.id in by_id:
            calls.remove(by_id[part.id])
            yield by_id.pop(part.id)
        else:
            yield part
    if given.get("refusal"):
        yield Said(_text(given["refusal"], "its refusal"))
    yield from calls
    if given.get("function_call"):
        yield _call(given["function_call"], "its function_call")


def items_of(given: Mapping[str, Any], where: str = "") -> Sequence[Call | Result] | None:
    """Returns what is no text but an item beside messages, as OpenAI's Responses API has them.

    Empty: it has no words. None for other mappings. Raises as `parts_of`.
    """
    kind = given.get("type")
    if not isinstance(kind, str):
        return None
    within = f"{where}, " if where else ""
    if kind.endswith(_RESULTS):
        return [result_of(given, within)]
    if kind.endswith(_CALLS):
        return [_call(given, where or "it")]
    if kind in _NAMELESS or kind in _WITH_RESULTS:
        call = _call(_named(given, kind), where or "it")
        return [call, _result_within(given, call, within)] if kind in _WITH_RESULTS else [call]
    if kind.endswith("_call") and any(word in kind for word in _MEDIA):
        raise ValueError((where and f"{where}: ") + _refused(kind))
    return [] if kind in _WORDLESS or kind.endswith("_call") else None


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


def _named(given: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Returns a call with a name and arguments."""
    if kind not in _NAMELESS:
        return given
    name = kind.removesuffix("_call")
    return {**given, "name": name, "arguments": given.get(_NAMELESS[kind])}


def _result_within(given: Mapping[str, Any], call: Call, where: str) -> Result:
    """Returns the result that is in the item of its call."""
    error = given.get("error")
    output = _written(error) if error else given.get("output") or given.get("outputs")
    found = {"call_id": call.id, "name": call.name, "output": output, "is_error": bool(error)}
    return result_of(found, where)


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
    items = items_of(block, where)
    if items is not None:
        yield from items
    elif kind.endswith(("_result", "_result_error")) or ("type" not in block and "stdout" in block):
        yield from _result_parts(block, kind, where)
    elif kind in _TEXTS:
        joined = bool(block.get("citations"))
        yield Said(_text(block.get(_TEXTS[kind]), where), joined=joined)
    elif kind == "thinking":
        yield Thought(_text(block.get("thinking"), where))
    elif kind == "document":
        yield from _document(block.get("source"), where)
    else:
        raise ValueError(f"{where}: {_refused(kind)}")


def _result_parts(block: Mapping[str, Any], kind: str, where: str) -> Iterator[Part]:
    """Yields what is in a result of a tool of the provider, or of a shell."""
    if kind.endswith("_result_error"):
        yield Said(f"Error: {block.get('error_code')}")
    elif kind == "web_search_result":
        yield Said(f"{block.get('title')} ({block.get('url')})")
    elif block.get("file_type", "text") != "text":
        # A file that the model looked at.
        raise ValueError(f"{where}: {_refused(str(block['file_type']))}")
    else:
        streams = [block[name] or "" for name in ("stdout", "stderr") if name in block]
        # Beside what a program wrote, the content is ids of files.
        content = streams or block.get("content") or block.get("lines")
        yield from _content(content, f"{where}, ")


def _document(source: Any, where: str) -> Iterator[Part]:
    """Yields the text of a document. Raises ValueError for a file."""
    found = source if isinstance(source, Mapping) else {}
    if found.get("type") == "text":
        yield Said(_text(found.get("data"), where))
    elif found.get("type") == "content":
        yield from _content(found.get("content"), f"{where}, ")
    else:
        raise ValueError(f"{where}: {_refused('document')}")


def _call(given: Any, where: str) -> Call:
    call = _block(given, where)
    called = _block(call.get("function") or call.get("custom") or call, where)
    name = called.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where} has no name of a tool")
    named = (called.get(one) for one in ("arguments", "input", "args"))
    arguments = _written(next((one for one in named if one is not None), ""))
    return Call(id=str(call.get("call_id") or call.get("id") or ""), name=name, arguments=arguments)


def _written(given: Any) -> str:
    """Returns a text as it is, and other values as JSON."""
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)


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
