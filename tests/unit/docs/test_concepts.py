"""docs/concepts.md has each of its words in the index, each table, and names only what is there."""

import re

from storage.tables import metadata
from tests import ROOT

PAGE = (ROOT / "docs/concepts.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
WORDS, INDEX = PAGE.split("## Index\n")
ROOMS = {
    "access",
    *("log", "memories", "prism", "tree", "state", "answers", "search", "calls", "spend"),
    "operations",
}
#: What belongs to no room.
FOLDERS = {
    *("app", "dispatch", "evaluation", "local", "rpc", "settings", "verification"),
    *("llm", "llm/embeddings", "llm/executor", "llm/offline", "llm/prefix_cache"),
    *("domain/prompting", "domain/values", "storage/engine"),
}


def entries() -> list[tuple[str, str, str]]:
    """Returns each word, the anchor of its section, and its text."""
    found = []
    for section in re.split(r"^##+ ", WORDS, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        for entry in re.findall(r"^- (.*(?:\n  .*)*)", text, re.MULTILINE):
            word = re.match(r"\*\*(.+?)\*\*", entry)
            assert word is not None, entry
            found.append((word[1], title.lower().replace(" ", "-"), entry))
    return found


def test_the_index_has_every_word_in_the_order_of_the_alphabet() -> None:
    wanted = sorted(
        ((word, section) for word, section, _ in entries()),
        key=lambda one: one[0].strip("`").lower(),
    )
    indexed = re.findall(r"\[([^\]]+)\]\(#([^)]+)\)", " ".join(INDEX.split()))
    assert indexed == wanted
    assert len({word for word, _ in indexed}) == len(indexed) > 200


def test_every_word_says_where_it_lives() -> None:
    for word, _, entry in entries():
        where = re.search(r"\*([a-z_/, ]+)\*$", " ".join(entry.split()))
        assert where is not None, word
        assert set(where[1].split(", ")) <= ROOMS | FOLDERS, word


def test_every_class_that_a_word_names_exists() -> None:
    named = {
        name
        for _, _, entry in entries()
        for inside in re.findall(r"^\*\*[^*]+\*\* \(([^)]*)\)", entry)
        for name in re.findall(r"\b[A-Z]\w*[a-z][A-Z]\w*", inside)
    }
    classes = {
        name
        for layer in ("service", "storage", "evaluation")
        for path in (ROOT / layer).rglob("*.py")
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(named) > 15
    assert named <= classes


def test_every_table_has_its_row_and_no_other_has() -> None:
    cells = re.findall(r"^\| ((?:`\w+`,? ?)+) \|", WORDS, re.MULTILINE)
    listed = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    # A view, which the metadata of tables does not have.
    assert sorted(listed) == sorted([*metadata.tables, "spend"])


def test_links_lead_to_pages_that_are_there() -> None:
    for folder, text in ((ROOT / "docs", PAGE), (ROOT, CONTRIBUTING)):
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            assert (folder / link).exists(), link


def test_contributing_names_the_rooms_and_jobs_of_make() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", CONTRIBUTING, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == ROOMS
    jobs = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^    |`)make ([a-z-]+)", CONTRIBUTING, re.MULTILINE))
    assert {"setup", "verify", "fix", "test"} <= named <= jobs
    assert len(CONTRIBUTING.splitlines()) <= 200
