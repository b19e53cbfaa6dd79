"""Multiple choice: the options of a question, and which of them an answer is.

A tree shows them in prompts of its own. What else reads is told them with the question, and its
answer is brought to one of them where it is not one word for word.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

#: Each has a letter.
MAX_OPTIONS = 26

#: A number keeps its sign, and a name like C++ or C# what makes it another one than C.
_WORD = re.compile(r"(?<!\w)[-+](?=\d)\w+|\w+(?:\+\+|#)?")


def worded(query: str, options: Sequence[str]) -> str:
    """A question with its options, as readers that know of none are asked it."""
    if not options:
        return query
    listed = "\n".join(f"- {' '.join(option.split())}" for option in options)
    return f"{query}\nIt is one of these:\n{listed}"


def normal(answer: str) -> str:
    """An answer in its comparable form: its words, whatever their case and what is between."""
    folded = unicodedata.normalize("NFKC", answer).casefold()
    return " ".join(_WORD.findall(folded)) or folded.strip()


def same_option(answer: str, options: Sequence[str]) -> str | None:
    """The option that an answer is, but for case and marks; None when it is in other words."""
    if answer in options:
        return answer
    same = [option for option in options if normal(option) == normal(answer)]
    return same[0] if len(same) == 1 else None


def options_schema(options: Sequence[str]) -> dict[str, Any]:
    """The JSON Schema of one of the options; null where an answer is none of them."""
    return {"enum": [*options, None]}
