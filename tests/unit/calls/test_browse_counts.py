"""Browsing by the tokens of a real vocabulary, which are no sums of those of parts."""

import random
from typing import Any

import pytest

from service.domain.answers.browse.prompts import piece_tokens
from service.domain.answers.browse.spec import BrowseOption
from service.llm.offline.model import complete
from service.llm.providers.facts import Facts
from service.llm.splitter import first_piece
from service.settings.config import Config
from tests.unit.answers.browse.support import KEY, Log, request, run

WORDS = (
    *("Ann", "Ben", "fox", "the", "unbelievably", "house", "3,14159", "née", "北京", "def(x):"),
    *("😀", "—", "\n\n", "-", "left", "at", "dawn.", "Zzyzx"),
)


def chunks(seed: int) -> list[str]:
    """Texts of many lengths."""
    lot = random.Random(seed)
    return [" ".join(lot.choices(WORDS, k=lot.choice([3, 40, 900]))) for _ in range(25)]


@pytest.mark.parametrize("window", [512, 1024, 4096])
def test_no_prompt_passes_the_window_by_the_count_of_a_real_vocabulary(window: int) -> None:
    count = Facts(Config()).of("openai/gpt-4o").count
    log = Log(chunks(window), best=range(1, 9))
    for option in BrowseOption:
        asked = request(option, window_tokens=window, max_calls=200)
        settled: dict[str, Any] = {"window_tokens": 100_000, "marker_key": KEY, "count": count}
        log.tokens = piece_tokens("Who left at dawn?", request=asked, **settled)
        log.count, log.cut = count, first_piece
        got = run(
            log,
            lambda ask: complete(ask),
            asked,
            query="Who left at dawn?",
            count=count,
        )
        for ask in got.asks:
            assert count(ask.text) + ask.max_output_tokens < window
