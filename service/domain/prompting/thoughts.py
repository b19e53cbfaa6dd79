"""Thoughts: what some models write before their reply."""

import re

# What repeats is bounded: a model that has lost its way writes blanks without end.
_THOUGHTS = re.compile(r"\s{0,64}<think(?:ing)?>")
_THOUGHT_END = re.compile(r"</think(?:ing)?>[ \t]{0,16}$", re.MULTILINE)


def spoken(text: str) -> str:
    """A reply without the thoughts that it begins with; as it is when they do not end."""
    if not is_thought(text):
        return text
    end = 0
    for match in _THOUGHT_END.finditer(text):
        end = match.end()
    return text[end:]


def said(reply: str) -> str:
    """A reply without the thoughts that it begins with; empty when it is nothing else."""
    text = spoken(reply)
    if not is_thought(text):
        return text
    # They may end within a line, or not at all.
    _, end, behind = text.rpartition("</think")
    return behind.partition(">")[2] if end else ""


def behind_unopened(text: str) -> str:
    """A text without thoughts that only end in it: templates of chats begin them.

    For texts in which nothing else says where the reply begins.
    """
    end = _THOUGHT_END.search(text)
    is_thinking = end is not None and "<think" not in text[: end.start()]
    return text[end.end() :] if end is not None and is_thinking else text


def is_thought(text: str) -> bool:
    """Whether a reply begins with thoughts."""
    return _THOUGHTS.match(text) is not None
