"""Generating schemas: from a description of the texts and a question (section 3.4).

The model's reply is untrusted: a class is searched for in it, parsed and never run. When
there is none, the model sees its reply and what is wrong with it, and tries again.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from service.domain.prism.schemas import prompts as prompts_schema
from service.domain.prism.schemas.limits import MAX_REQUEST_BYTES, bounded
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.source_text import read_text
from service.domain.prism.schemas.tree import Schema, render
from service.domain.prompting.asking import (
    GROWTH,
    THEN,
    Then,
    Unusable,
    numbered,
    text_of,
)
from service.domain.prompting.flows import (
    Flow,
    ModelReply,
    ModelRequest,
    Purpose,
    Segment,
    SegmentKind,
)
from service.domain.prompting.replies import fenced
from service.domain.values.errors import SchemaInvalid

#: Tokens that a reply may have.
SCHEMA_OUTPUT_TOKENS = 4096
#: How often a model is asked before it is given up.
MAX_TRIES = 3
#: Pieces of a reply that are tried; what a model writes has one or two.
MAX_PIECES = 8

_CLASS = re.compile(r"[ \t]{0,64}class[ \t]{1,8}\w{1,200}[ \t]{0,8}(?:[:(]|$)")
#: What the lines that may stand between two classes begin with: decorators and comments.
_BESIDE = "@#"


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaDraft:
    """A schema that a model wrote."""

    #: Class source as memories show it; parsing it gives a valid schema.
    source: str
    #: The model that wrote it, as provider/name.
    model: str
    #: Which of its replies it was; 1 or more.
    attempts: int


class NoSchema(Exception):
    """No reply held a valid schema; the message is one sentence."""

    def __init__(self, tries: int, fault: str) -> None:
        #: The message without words of the model, for logs.
        self.plain = f"the model gave no valid schema in {tries} tries"
        super().__init__(f"{self.plain}; the last time, {fault}")


def generate(
    domain: str, example_query: str, *, marker_key: bytes, tries: int = MAX_TRIES
) -> Flow[SchemaDraft]:
    """Generates the schema of a memory for such questions. Raises NoSchema after `tries`.

    Raises NoUse when the model refuses.
    """
    task = Segment(kind=SegmentKind.TASK, text=prompts_schema.generate_task())
    wanted = prompts_schema.wanted_segment(domain, example_query, marker_key)
    # Reusable: when the model is asked again, its prompt begins with both.
    asked = (task, Segment(kind=SegmentKind.QUERY, text=wanted))
    again: tuple[Segment, ...] = ()
    fault = "it was never asked"
    output_tokens = SCHEMA_OUTPUT_TOKENS
    for attempt in range(tries):
        (reply,) = yield [
            ModelRequest(
                purpose=Purpose.SCHEMA,
                template=prompts_schema.GENERATE,
                segments=(*asked, *again),
                max_output_tokens=output_tokens,
                attempt=attempt,
            )
        ]
        try:
            source = _read(reply)
        except Unusable as error:
            fault = str(error)
            if THEN[reply.end] is Then.MORE_ROOM:
                output_tokens = GROWTH * SCHEMA_OUTPUT_TOKENS
            text = prompts_schema.again_segment(
                reply.text, numbered(fault, attempt + 1), marker_key
            )
            again = (Segment(kind=SegmentKind.QUERY, text=text, reusable=False),)
        else:
            return SchemaDraft(source=source, model=reply.model, attempts=attempt + 1)
    raise NoSchema(tries, fault)


def _read(reply: ModelReply) -> str:
    """Returns the schema of a reply. Raises Unusable, and NoUse where the model refuses."""
    text = text_of(reply)
    try:
        return read_schema(text)
    except SchemaInvalid as error:
        raise Unusable(error.message) from error


def read_schema(reply: str) -> str:
    """Returns the schema of a reply, as class source in its one form. Raises SchemaInvalid.

    Code fences, words around them and imports are passed over. Lines of a refusal are
    those of the reply.
    """
    lines = reply.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    refusal: SchemaInvalid | None = None
    for source in _sources(lines):
        try:
            return _checked(parse_source(_without_imports(bounded(source))))
        except SchemaInvalid as error:
            refusal = refusal or error
    raise refusal or SchemaInvalid("the reply holds no class", line=1, column=1)


def _checked(schema: Schema) -> str:
    source = render(schema)
    if len(source.encode()) > MAX_REQUEST_BYTES:
        # Written out it can be larger than what a memory takes.
        why = f"written out, the schema has more than {MAX_REQUEST_BYTES} bytes"
        raise SchemaInvalid(why, line=1, column=1)
    return source


def _sources(lines: Sequence[str]) -> Iterator[str]:
    """Yields what may be the schema, the likeliest first, each line where it is in the reply."""
    pieces = [piece for piece in fenced(lines) if any(_CLASS.match(lines[n]) for n in piece)]
    pieces = (pieces or list(_unfenced(lines)))[-MAX_PIECES:]
    if not pieces:
        return
    # Some models write each class in a fence of its own, and others a draft first.
    yield _only(lines, [number for piece in pieces for number in piece])
    if len(pieces) > 1:
        for piece in reversed(pieces):
            yield _only(lines, piece)


def _unfenced(lines: Sequence[str]) -> Iterator[range]:
    """Runs of lines that begin with a class and end where its margin is passed."""
    number = 0
    while number < len(lines):
        if not _CLASS.match(lines[number]):
            number += 1
            continue
        margin = _margin(lines[number])
        begins = number
        number += 1
        while number < len(lines) and _belongs(lines[number], margin):
            number += 1
        yield range(begins, number)


def _margin(line: str) -> int:
    return len(line) - len(line.lstrip())


def _belongs(line: str, margin: int) -> bool:
    if not line.strip() or _margin(line) > margin:
        return True
    return _margin(line) == margin and bool(_CLASS.match(line) or line.lstrip()[0] in _BESIDE)


def _only(lines: Sequence[str], kept: Sequence[int]) -> str:
    """Returns the reply with all lines but `kept` emptied."""
    numbers = set(kept)
    return "\n".join(line if n in numbers else "" for n, line in enumerate(lines))


def _without_imports(source: str) -> str:
    """Returns the source with the lines of its imports emptied."""
    imports = _imports(source)
    if not imports:
        return source
    return "\n".join(
        "" if number in imports else line for number, line in enumerate(source.split("\n"))
    )


def _imports(source: str) -> set[int]:
    """Lines (from 0) of a source's imports: models write them, and they say nothing."""
    try:
        tree = read_text(source).tree
    except SchemaInvalid:
        # parse_source says what is wrong.
        return set()
    return {
        number - 1
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
