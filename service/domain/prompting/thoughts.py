"""Removes the thoughts that some models write before their reply."""

import re

# What repeats is bounded: a model that has lost its way writes blanks without end.
_THOUGHTS = re.compile(r"\s{0,64}<think(?:ing)?>")
_THOUGHT_END = re.compile(r"</think(?:ing)?>[ \t]{0,16}$", re.MULTILINE)
#: The same in an unfinished reply: its line may still go on.
_CLOSED_END = re.compile(r"</think(?:ing)?>[ \t]{0,16}\n")
_END_MARK = "</think"


def spoken(text: str) -> str:
    """Returns a reply without the thoughts that it begins with; as it is when they do not end."""
    if not is_thought(text):
        return text
    end = 0
    for match in _THOUGHT_END.finditer(text):
        end = match.end()
    return text[end:]


def said(reply: str) -> str:
    """Returns a reply without the thoughts that it begins with; empty when it is nothing else."""
    text = spoken(reply)
    if not is_thought(text):
        return text
    # They may end within a line, or not at all.
    _, end, behind = text.rpartition(_END_MARK)
    return behind.partition(">")[2] if end else ""


def said_so_far(reply: str) -> str:
    """Returns an unfinished reply without the thoughts that it begins with.

    Empty within them. Where thoughts end again it stops: what is before would be void.
    """
    if not is_thought(reply):
        return reply
    end = _CLOSED_END.search(reply)
    if end is None:
        return ""
    text, again, _ = reply[end.end() :].partition(_END_MARK)
    return text if again else _without_start_of(_END_MARK, text)


def _without_start_of(mark: str, text: str) -> str:
    """Returns a text without an end that may become `mark`."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return text[:-size]
    return text


def behind_unopened(text: str) -> str:
    """Returns a text without thoughts that only end in it: templates of chats begin them.

    For texts in which nothing else says where the reply begins.
    """
    end = _THOUGHT_END.search(text)
    is_thinking = end is not None and "<think" not in text[: end.start()]
    return text[end.end() :] if end is not None and is_thinking else text


def is_thought(text: str) -> bool:
    """Returns whether a reply begins with thoughts."""
    return _THOUGHTS.match(text) is not None
