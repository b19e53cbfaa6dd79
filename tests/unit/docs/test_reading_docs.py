"""The rules and the figures that the guide to reading gives are those of the code."""

import re

from service.domain.answers.browse.spec import QuerySubject
from service.domain.answers.choosing import HYBRID_LEAVES, NEAR_CHUNKS, NEAR_SHARE, RULES
from service.domain.answers.response_schemas import MAX_PATTERN_CHARACTERS, MAX_SCHEMA_BYTES
from service.domain.values.json_values import MAX_DEPTH
from service.domain.values.memory_specs import ReaderName, Way
from service.settings.config import Config
from tests.support.guides import section

PAGE = " ".join(section("asking", "The readers").split())
ROWS = {
    QuerySubject.STATE: "how things are now",
    QuerySubject.FACT: "a fact",
    QuerySubject.OVERVIEW: "the whole",
    QuerySubject.CODE: "code",
}
NAMES = {
    Way.PRISM: "`prism`",
    Way.CONTEXT: "`pcc`",
    Way.TREE: "`memwalker`",
    Way.LEVELS: "the levels of a state memory",
    Way.RANK: "`dciso` what retrieval ranks",
    Way.ALL: "`dciso` over all pieces",
    Way.SCAN: "`dciso` scanning from the end",
}


def test_every_reader_has_its_row() -> None:
    for reader in ReaderName:
        assert f"| `{reader}` |" in PAGE


def test_the_table_is_that_of_the_rules() -> None:
    for subject, row in ROWS.items():
        found = re.search(rf"\| {row} \| ([^|]*`[^|]*) \| ([^|]*) \|", PAGE)
        assert found is not None, row
        told = [[one for one in re.split("; ", cell) if one.strip()] for cell in found.groups()]
        tiers = RULES[subject]
        assert [len(cell) for cell in told if cell] == [len(tier) for tier in tiers]
        for cell, tier in zip(told, tiers, strict=False):
            for words, way in zip(cell, tier, strict=True):
                assert words.startswith(NAMES[way]), (row, words, way)


def test_the_figures_are_those_of_the_code() -> None:
    assert f"({Config().auto_whole_tokens:,}) tokens" in PAGE
    assert f"beginning at {HYBRID_LEAVES} leaves" in PAGE
    assert f"more than {NEAR_CHUNKS} chunks and more than {NEAR_SHARE:.0%} of the log" in PAGE
    assert f"more than {MAX_SCHEMA_BYTES // 1024} KiB or {MAX_DEPTH} levels" in PAGE
    assert f"more than {MAX_PATTERN_CHARACTERS} characters" in PAGE
