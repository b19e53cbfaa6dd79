"""Prompts that were sent last, and what of a new one is the same."""

import pytest

from service.llm.prefix_cache import recent_prompts
from service.llm.prefix_cache.recent_prompts import RecentPrompt, RecentPrompts

SENT = RecentPrompt(texts=("task", "0123456789"), tokens=(4, 24), sent_at=100.0)


@pytest.mark.parametrize(
    ("texts", "tokens"),
    [
        (("task", "0123456789"), 24),
        (("task", "0123456789", "more"), 24),
        (("task", "01234567xx"), 4 + 16),
        (("task", "0123456789ab"), 24),
        (("task", "x"), 4),
        (("task",), 4),
        (("taXk", "0123456789"), 2),
        ((), 0),
    ],
)
def test_what_begins_alike_counts_to_the_character(texts: tuple[str, ...], tokens: int) -> None:
    assert SENT.common_tokens(texts) == tokens


def test_only_the_last_prompt_counts_and_only_while_it_is_warm() -> None:
    prompts = RecentPrompts()
    prompts.keep(("a",), SENT)
    later = RecentPrompt(texts=("t",), tokens=(1,), sent_at=101.0)
    prompts.keep(("a",), later)
    assert prompts.find(("a",), 101.0) is later
    assert prompts.find(("a",), 101.5) is None
    assert prompts.find(("b",), 0.0) is None


def test_no_more_is_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_prompts, "MAX_PROMPTS", 3)
    monkeypatch.setattr(recent_prompts, "MAX_CHARACTERS", 30)
    prompts = RecentPrompts()
    for number in range(5):
        prompts.keep((str(number),), RecentPrompt(texts=("x",), tokens=(1,), sent_at=1.0))
    assert [bool(prompts.find((str(n),), 0.0)) for n in range(5)] == [False] * 2 + [True] * 3
    prompts.keep(("long",), RecentPrompt(texts=("y" * 29,), tokens=(9,), sent_at=1.0))
    assert prompts.find(("4",), 0.0), "one more character fits"
    assert prompts.find(("3",), 0.0) is None
