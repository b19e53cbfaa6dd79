"""docs/guides/search.md: its commands and its program print what it says."""

import sys
from collections.abc import Iterator

import pytest

from service.domain.prism.entries import RECORD_CHARACTERS
from service.domain.search.entries import TEXT_CHARACTERS
from service.domain.search.fusing import LEADERS, MIN_AGREEMENT, MIN_LEAD
from service.domain.search.reranking import MAX_TEXTS
from service.usecases.search.search import DEPTH, RERANK_WINDOW_TOKENS, VECTORS_WEIGHT, WORDS_WEIGHT
from storage.search.entry_search import COMPARED_ENTRIES, FILTERED_CHUNKS
from storage.search.finding import MAX_WORDS
from storage.search.vectors import EXACT_VECTORS
from tests import ROOT
from tests.acceptance.guides.pages import commands, printed, program
from tests.support.harness import Servers, api

PAGE = (ROOT / "docs/guides/search.md").read_text()


@pytest.fixture
def address(servers: Servers) -> Iterator[str]:
    """Yields a server with nothing in it, as the guide finds it."""
    with api(servers.new_database()) as (_, address):
        yield address


@pytest.mark.prove
def test_the_guide_prints_what_it_says(address: str) -> None:
    shown = PAGE.partition("## How chunks are found")[0]
    listed = commands(shown)
    assert len(listed) == 5
    for command, lines in listed:
        command = command.replace("> token", "> /dev/null")
        assert printed(["bash", "-c", command], address) == lines, command
    text, lines = program(PAGE.partition("## How long")[0])
    text = text.replace("Client()", f"Client({address!r})")
    assert printed([sys.executable, "-"], address, text) == lines


def test_the_guide_finds_entries_as_it_says(address: str) -> None:
    shown = PAGE.partition("## Entries of memories")[2]
    text, lines = program(shown)
    command, *found = lines[2:]
    assert printed([sys.executable, "-"], address, text) == lines[:2]
    assert printed(["bash", "-c", command.removeprefix("$ ")], address) == found


def test_the_figures_are_those_of_the_code() -> None:
    page = " ".join(PAGE.split())
    assert f"{MAX_WORDS} distinct words count: of more, the longest" in page
    assert f"up to {EXACT_VECTORS:,} vectors" in page
    assert f"name {DEPTH} chunks each" in page
    assert f"the mean of its {LEADERS} best, and at least {MIN_LEAD}" in page
    assert f"Vectors count {VECTORS_WEIGHT / WORDS_WEIGHT} times that" in page
    assert f"and {MIN_AGREEMENT} of that if they order them by chance" in page
    assert f"up to {RECORD_CHARACTERS} characters of JSON" in page
    assert f"more than {TEXT_CHARACTERS:,} characters is several" in page
    assert f"the newest {FILTERED_CHUNKS:,} are looked at" in page
    assert f"up to {COMPARED_ENTRIES:,} of a session are compared" in page
    assert f"the best {MAX_TEXTS}, or as many as fit {RERANK_WINDOW_TOKENS:,} tokens" in page
