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


#: What the release before put after a reply that was cut off; its text was all that it kept.
_MARK = "\n[CUT OFF]"


def kept_reply(text: str, ended: str | None) -> tuple[str, End]:
    """Returns the text of a reply that was kept, without the mark, and how it ended.

    `ended` is what was kept of that; None: the release before kept it, and says it by its mark.
    """
    if ended is None:
        ended = End.LENGTH if text.endswith(_MARK) else End.COMPLETE
    end = end_of(ended)
    return (text.removesuffix(_MARK) if end is End.LENGTH else text), end


def is_kept_by_text(text: str, end: End) -> bool:
    """Returns whether `kept_reply` finds the end of a reply by its text alone."""
    return kept_reply(text, None) == (text, end)


def end_of(value: str) -> End:
    """Returns an end by its value; one that another release knows is unknown."""
    try:
        return End(value)
    except ValueError:
        return End.UNKNOWN
