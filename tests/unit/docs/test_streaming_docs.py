"""The figures that the guide to reading along gives are those of the code."""

import re

from service.domain.answers.answer_updates import PIECE_CHARACTERS
from service.settings.config import Config
from service.usecases.answers.text_streaming import PIECE_SECONDS
from tests.support.guides import section

PAGE = section("asking", "Reading along")


def test_the_bounds_of_pieces_are_those_of_the_code() -> None:
    assert f"at most {PIECE_CHARACTERS:,} characters" in PAGE
    assert f"at most every {PIECE_SECONDS * 1000:.0f} ms" in PAGE


def test_the_settings_are_those_of_the_service() -> None:
    names = {name.lower() for name in re.findall(r"PALIMPSEST_([A-Z_]+)", PAGE)}
    assert names == {"model_timeout_seconds"}
    assert names <= set(Config.model_fields)
