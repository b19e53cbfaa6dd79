"""How replies of models end."""

from enum import StrEnum


class End(StrEnum):
    """How a reply ended. Stored with the call, and shown to operators.

    Only a complete reply is ever taken for one: what each flow does about the others is in
    `service.domain.prompting.asking`.
    """

    #: The model ended it by itself, and there is text in it.
    COMPLETE = "complete"
    #: It reached its bound of tokens, or the window, before its end.
    LENGTH = "length"
    #: The model refused, in words or by its provider's sign for that.
    REFUSAL = "refusal"
    #: The provider withheld it: a filter of contents, of the prompt or of the reply.
    FILTER = "filter"
    #: It ended by itself, and there is nothing in it.
    EMPTY = "empty"
    #: Its tokens went into thinking; nothing was said.
    THINKING = "thinking only"
    #: It calls a tool, although none was offered.
    TOOL_CALL = "tool call"
    #: The provider names an end that is none of these.
    UNKNOWN = "unknown"

    @property
    def is_refused(self) -> bool:
        """Whether the text in the prompt was refused: to ask for the same is no use."""
        return self in (End.REFUSAL, End.FILTER)


def end_of(value: str) -> End:
    """Returns an end by its value; one that another release knows is unknown."""
    try:
        return End(value)
    except ValueError:
        return End.UNKNOWN
