"""Replies of PRISM: the schema of a revision, values as texts, and answers with their paths.

The schema is the same for all memories: strings and a list of objects, all required, which
every provider takes. A value is JSON text. What a reply changes is read in
`service.domain.prism.reading`.
"""

import re
from collections.abc import Iterator

from service.domain.prism.amendments import Op, Proposal
from service.domain.prism.schemas.tree import LiteralType, OptionalType, Scalar, Type
from service.domain.prompting import sections
from service.domain.prompting.asking import SaidAnswer
from service.domain.prompting.flows import object_schema
from service.domain.prompting.literals import whole_value
from service.domain.prompting.sections import SourcesSection, header
from service.domain.values.json_values import Json, parse

#: Not to be changed: calls are known by its bytes.
REPLY_SCHEMA = object_schema(
    {
        "changes": {
            "type": "array",
            "items": object_schema(
                {
                    "op": {"type": "string", "enum": [op.value for op in Op]},
                    "path": {"type": "string"},
                    "value": {"type": "string"},
                }
            ),
        }
    }
)

_PATHS = SourcesSection(header=header("PATHS?"))
_BULLET = re.compile(r"^[\s*•-]*(?:\d+[.)])?\s*`?")


def value_of(proposal: Proposal, of: Type) -> Json:
    """Returns the value that a proposal means at a place of this type.

    A text that cannot be read stays one: the type says then what is wrong with it.
    """
    value = proposal.value
    if not proposal.is_text or not isinstance(value, str):
        return value
    bare = of.inner if isinstance(of, OptionalType) else of
    if bare is Scalar.STR:
        return _text(value)
    if isinstance(bare, LiteralType) and value in bare.values:
        return value
    try:
        return whole_value(value)
    except ValueError:
        return value


def _text(value: str) -> Json:
    """Reads what is meant where text is: a string of JSON, null, or the text as it is."""
    if value.strip() == "null":
        return None
    if not value.lstrip().startswith('"'):
        return value
    try:
        said = parse(value)
    except ValueError:
        return value
    return said if isinstance(said, str) else value


def answer_so_far(reply: str) -> str:
    """Returns the answer of an unfinished reply, as `read_answer` will find it."""
    return sections.answer_so_far(reply, _PATHS)


def read_answer(reply: str, is_cut: bool = False) -> SaidAnswer[str] | None:
    """Returns the answer of a reply and the paths that it names; None when nothing is said.

    `is_cut`: the reply lacks its end. What is left of a path there names a place above the one
    that was meant, so its line does not count.
    """

    def paths(text: str) -> Iterator[str]:
        for line in (text[: text.rfind("\n") + 1] if is_cut else text).splitlines():
            path = _BULLET.sub("", line).rstrip("` \t\r")
            if path.startswith(("$", "/")):
                yield path

    return sections.read_answer(reply, _PATHS, paths, is_cut=is_cut)
