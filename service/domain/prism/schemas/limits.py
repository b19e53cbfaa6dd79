"""What a schema may be at most, and the normal form of its parts.

It holds for every way of writing a schema, so that each can be shown as class source
and read again.
"""

from collections.abc import Iterable

from service.domain.prism.schemas.tree import (
    DictType,
    ListType,
    LiteralType,
    OptionalType,
    RecordType,
    TupleType,
    Type,
    inner_types,
)
from service.domain.values.errors import SchemaInvalid
from service.domain.values.json_values import check_text, checked
from service.domain.values.paths import MAX_KEY_CHARACTERS

#: Bytes of a JSON Schema, which takes several times the words for the same.
MAX_JSON_BYTES = 256 * 1024
#: Fields of all records together.
MAX_FIELDS = 500
#: Classes, and levels of a value, within one another.
MAX_NESTING = 16
#: Parts of a value that has one of everything. A short schema can stand for a huge one
#: by using each class twice in the next.
MAX_PARTS = 10_000
#: Bytes of the schema as the model is shown it.
MAX_SHOWN_BYTES = 128 * 1024
#: Bytes of schema source: what is shown can be read again.
MAX_SOURCE_BYTES = MAX_SHOWN_BYTES
#: Bytes of schema source from outside, in a request or a model's reply, as the proto says.
MAX_REQUEST_BYTES = 64 * 1024


def bounded(source: str, most: int = MAX_REQUEST_BYTES) -> str:
    """Returns `source`, if it has at most so many bytes. Raises SchemaInvalid.

    For what comes from outside, before anything else reads it; what is stored may be longer.
    """
    # What cannot be encoded is refused by who reads it.
    if len(source) > most or len(source.encode(errors="replace")) > most:
        raise SchemaInvalid(f"the source has more than {most} bytes", line=1, column=1)
    return source


class Measures:
    """The size of types. It remembers them, for a type can be a part of many."""

    def __init__(self) -> None:
        #: By the type's identity; the type is held, or another could get it.
        self._known: dict[int, tuple[Type, int, int]] = {}

    def excess(self, of: Type) -> str:
        """Returns what is too much about a type, as a sentence; empty when nothing is."""
        levels, parts = self._measure(of)
        if levels > MAX_NESTING:
            return f"its values would be nested deeper than {MAX_NESTING} levels"
        if parts > MAX_PARTS:
            return f"a value with all its parts would have more than {MAX_PARTS}"
        return ""

    def _measure(self, of: Type) -> tuple[int, int]:
        """Returns the levels of a value with all its parts, and how many parts it has."""
        if id(of) in self._known:
            return self._known[id(of)][1:]
        measured = [self._measure(one) for one in inner_types(of)]
        is_holder = isinstance(of, ListType | DictType | TupleType | RecordType)
        own = len(of.values) if isinstance(of, LiteralType) else not isinstance(of, OptionalType)
        levels = is_holder + max((one for one, _ in measured), default=0)
        parts = own + sum(one for _, one in measured)
        self._known[id(of)] = (of, levels, parts)
        return levels, parts


def normal_doc(text: str) -> str:
    """Returns guidance as schemas have it: no blanks at its ends or at those of its lines.

    Raises ValueError for what cannot be stored.
    """
    lines = check_text(text).replace("\r\n", "\n").replace("\r", "\n").expandtabs().split("\n")
    return "\n".join(line.rstrip() for line in lines).strip()


def checked_literal(value: str | int) -> str | int:
    """Returns `value`, if it may be one of a Literal. Raises ValueError with a sentence."""
    if isinstance(value, str) and len(value) > MAX_KEY_CHARACTERS:
        raise ValueError(f"a value of a Literal has at most {MAX_KEY_CHARACTERS} characters")
    try:
        checked(value)
    except ValueError as error:
        raise ValueError(f"a value of a Literal is or holds {error}") from error
    return value


def literal(values: Iterable[str | int]) -> LiteralType:
    """Returns a Literal that has each value once. True and 1 are two."""
    return LiteralType(
        values=tuple(value for _, value in dict.fromkeys((type(v), v) for v in values))
    )


def optional(inner: Type) -> Type:
    """Returns a type or null; once is enough."""
    return inner if isinstance(inner, OptionalType) else OptionalType(inner=inner)
