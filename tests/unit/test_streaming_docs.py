"""The figures that the guide to reading along gives are those of the code."""

import re
from pathlib import Path

from service.config import Config
from service.domain.telling import PIECE_CHARACTERS
from service.usecases.text_telling import TELL_SECONDS

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "streaming.md").read_text()


def test_the_bounds_of_pieces_are_those_of_the_code() -> None:
    assert f"at most {PIECE_CHARACTERS:,} characters" in PAGE
    assert f"at most every {TELL_SECONDS * 1000:.0f} ms" in PAGE


def test_the_settings_are_those_of_the_service() -> None:
    names = {name.lower() for name in re.findall(r"PALIMPSEST_([A-Z_]+)", PAGE)}
    assert names == {"model_timeout_seconds"}
    assert names <= set(Config.model_fields)
