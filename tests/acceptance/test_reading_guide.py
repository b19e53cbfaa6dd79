"""docs/guides/reading.md: its program prints what it says."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_history_guide import printed, program
from tests.harness import Servers, api, worker

PAGE = (Path(__file__).parents[2] / "docs/guides/reading.md").read_text()


@pytest.fixture
def address(servers: Servers) -> Iterator[str]:
    """A server with nothing in it, as the guide finds it."""
    url = servers.new_database()
    with api(url) as (_, address), worker(url):
        yield address


def test_the_program_prints_what_it_says(address: str) -> None:
    text, lines = program(PAGE)
    assert "connect()" in text
    text = text.replace("connect()", f"connect({address!r})")
    assert printed([sys.executable, "-"], address, text) == lines
