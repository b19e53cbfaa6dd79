"""Estimates of tokens."""

from service.domain.prompting.marking import marked
from service.domain.prompting.tokens import MARK_TOKENS, estimate_prompt_tokens, estimate_tokens
from service.llm.providers.facts import Facts
from service.settings.config import Config

TEXT = "On day 3 the Bergljot lay at the east quay and unloaded forty casks of oil."


def test_marks_are_counted_better_than_by_their_bytes() -> None:
    count = Facts(Config()).of("openai/gpt-4o").count
    texts = [marked(f"{TEXT} {number}", b"key") for number in range(50)]
    real = sum(map(count, texts))
    off = abs(sum(map(estimate_prompt_tokens, texts)) - real)
    assert off < 0.1 * real
    assert off < abs(sum(map(estimate_tokens, texts)) - real)


def test_what_is_not_marked_is_estimated_as_ever() -> None:
    for text in (TEXT, "", "<<<data 5f0c\n", "<<<data " + "0" * 23 + "\n"):
        assert estimate_prompt_tokens(text) == estimate_tokens(text)
    two_marks = marked(TEXT, b"key")
    assert estimate_prompt_tokens(two_marks) == estimate_tokens(f"{TEXT}\n") + 2 * MARK_TOKENS
