"""What a provider is to do with the next request."""

from dataclasses import dataclass
from enum import StrEnum


class Scenario(StrEnum):
    """What happens to a request that is valid."""

    OK = "ok"
    #: The model refuses, by its provider's sign for that.
    REFUSAL = "refusal"
    #: Cut by the bound of tokens, with half of the text.
    LENGTH = "length"
    #: The bound of tokens is spent on thoughts.
    LENGTH_EMPTY = "length, empty"
    #: The provider withholds the reply.
    FILTER = "filter"
    #: The provider refuses the prompt.
    PROMPT_FILTERED = "prompt filtered"
    #: It ends by itself, and says nothing.
    EMPTY = "empty"
    #: Thoughts, then the text.
    THINKING = "thinking"
    #: Thoughts, then the end.
    THINKING_ONLY = "thinking only"
    #: A call of a tool that was not offered.
    TOOL_CALL = "tool call"
    #: An end of the provider's own: `Turn.native` says which.
    ODD_END = "odd end"
    #: 400: the schema, or the grammar made of it, is not taken.
    SCHEMA_400 = "schema refused"
    RATE_LIMIT = "rate limit"
    #: The same, and it says when to come again.
    RATE_LIMIT_DELAY = "rate limit with delay"
    #: Quota or credit is used up.
    QUOTA = "quota"
    OVERLOADED = "overloaded"
    #: Status 200, and an error in the body.
    ERROR_WITH_200 = "error with 200"
    #: The connection ends, as if all were said, in the middle of a stream; of a whole reply
    #: half of the body comes.
    CUT_STREAM = "cut stream"
    #: An error in the middle of a stream; of a whole reply status 500.
    STREAM_ERROR = "error in the stream"
    TOO_LONG = "too long"
    KEY_REFUSED = "key refused"


#: Seconds that RATE_LIMIT_DELAY asks for.
DELAY_SECONDS = 7
#: What a model says when it refuses, and what it thinks.
REFUSAL = "I'm sorry, but I can't help with that."
THOUGHT = "The text names a harbour."
THOUGHT_TOKENS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What one request gets."""

    scenario: Scenario = Scenario.OK
    #: None: what the emulator's `answer` makes of the prompt.
    text: str | None = None
    #: Of ODD_END: the provider's name of the end.
    native: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What a model says, and its provider's name of the end."""

    text: str
    finish: str
    thought: str = ""
    refusal: str = ""
    #: It calls a tool, with these arguments, in place of a text.
    tool: dict[str, object] | None = None
    prompt_tokens: int = 0
    thought_tokens: int = 0

    @property
    def text_tokens(self) -> int:
        """A word counts as a token."""
        return len(f"{self.text}{self.refusal}".split())

    @property
    def output_tokens(self) -> int:
        return self.text_tokens + self.thought_tokens

    @property
    def parts(self) -> tuple[str, ...]:
        """Returns the text in the parts of a stream."""
        middle = len(self.text) // 2
        return tuple(part for part in (self.text[:middle], self.text[middle:]) if part)


def half(text: str) -> str:
    """Returns what comes of a text that is cut."""
    return text[: max(len(text) // 2, 1)]
