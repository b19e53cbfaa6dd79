"""Multiple choice: the options of a question, and which of them an answer is.

A tree shows them in prompts of its own. Other readers get them with the question, and an answer in
other words is converted to one of them.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from service.domain.prompting.asking import Unusable

#: Each has a letter.
MAX_OPTIONS = 26

#: A number keeps its sign, and a name like C++ or C# what makes it another one than C.
_WORD = re.compile(r"(?<!\w)[-+](?=\d)\w+|\w+(?:\+\+|#)?")
#: The letter of an option, by itself or before its words.
_LETTER = re.compile(
    r"^(?i:(?:the|my|answer|option|choice|correct|final|is)[ \t:]{1,3}){0,6}"
    r"(?:[(\[]([A-Za-z])[)\]]|([A-Za-z])(?:\)|\.?[ \t]{0,4}$)"
    r"|([A-Z])(?:[.:\]]|[ \t]{1,4}[-–—][ \t]))"
)


def worded(query: str, options: Sequence[str]) -> str:
    """Returns a question with its options, for readers that know no options."""
    if not options:
        return query
    listed = "\n".join(f"- {' '.join(option.split())}" for option in options)
    return f"{query}\nIt is one of these:\n{listed}"


def normal(answer: str) -> str:
    """Returns the words of an answer, without case and punctuation, for comparison."""
    folded = unicodedata.normalize("NFKC", answer).casefold()
    return " ".join(_WORD.findall(folded)) or folded.strip()


def same_option(answer: str, options: Sequence[str]) -> str | None:
    """Returns the option that equals an answer but for case and punctuation, or None."""
    if answer in options:
        return answer
    same = [option for option in options if normal(option) == normal(answer)]
    return same[0] if len(same) == 1 else None


def letter_of(number: int) -> str:
    """Returns the letter of an option, by its number from 0."""
    return chr(ord("A") + number)


def chosen_option(answer: str, options: Sequence[str]) -> str:
    """Returns the option that an answer means, by its letter or its text. Raises Unusable."""
    said = normal(answer)
    by_text = {option for option in options if normal(option) == said}
    by_letter: set[str] = set()
    letter = _LETTER.match(answer)
    if letter:
        number = ord(letter[letter.lastindex or 0].upper()) - ord("A")
        by_letter = set(options[number : number + 1])
        rest = normal(answer[letter.end() :])
        others = {option for option in options if rest and normal(option) == rest}
        if others and not others & by_letter:
            raise Unusable("its answer has the letter of one option and the text of another")
    meant = by_text | by_letter
    if len(meant) > 1:
        raise Unusable("its answer may mean two options; write letter and text of one")
    if not meant:
        raise Unusable("its answer is none of the options; write letter and text of one")
    return meant.pop()


def options_schema(options: Sequence[str]) -> dict[str, Any]:
    """Returns the JSON Schema of one of the options, or null for none of them."""
    return {"enum": [*options, None]}


def likeliest(options: Sequence[str], texts: Iterable[str]) -> str:
    """Returns the first option of whose words the texts have the largest share."""
    known = {word for text in texts for word in normal(text).split()}

    def share(option: str) -> float:
        words = set(normal(option).split())
        return len(words & known) / max(len(words), 1)

    return max(options, key=share)
