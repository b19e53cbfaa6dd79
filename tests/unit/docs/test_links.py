"""Links of pages, mentions of pages, and paths that pages name lead somewhere."""

import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests import ROOT
from tests.support.guides import headings

#: What others wrote, and its generated code, whose docs/ are not ours.
FOREIGN = ("third_party/", "proto/buf/", "proto/google/")
LINK = re.compile(r"\]\(([^)\s]+)\)")
#: A mention names a page with its ending, or a decision record by its number.
MENTION = re.compile(
    r"\bdocs/(?!decisions/NNNN)(?:[\w-]+/)*[\w-]+\.(?:md|jsonl|json)(?:#[\w-]+)?"
    r"|\bdocs/decisions/\d{4}"
)

#: A path of a file or folder, not within an address.
PATH = re.compile(
    r"(?<![\w/.-])(?:clients|deploy|docs|evaluation|migrations|proto|service|storage|tests"
    r"|verification)/[\w/.-]*[\w/]"
)
#: Records and changes name what was there at their time; the chart names resources of Kubernetes.
OTHER_PATHS = ("docs/decisions/", "CHANGELOG.md", "deploy/chart/")


def tracked() -> Iterator[tuple[str, str]]:
    """Yields the path and the text of each file of ours."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for path in filter(None, listed.stdout.split("\0")):
        if path.startswith(FOREIGN) or not (ROOT / path).is_file():
            continue
        data = (ROOT / path).read_bytes()
        if b"\0" not in data:
            yield path, data.decode(errors="replace")


@cache
def anchors(path: Path) -> frozenset[str]:
    """Returns the anchors that GitHub gives to the headings of a page."""
    found: list[str] = []
    for _, _, heading in headings(path.read_text()):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        again = sum(1 for one in found if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", one))
        found.append(f"{slug}-{again}" if again else slug)
    return frozenset(found)


def leads_nowhere(target: str, folder: str) -> bool:
    """Returns whether a path, with an anchor or without, names nothing seen from this folder."""
    name, _, anchor = target.partition("#")
    path = ROOT / os.path.normpath(os.path.join(folder, name))
    if re.fullmatch(r"docs/decisions/\d{4}", name):
        return not list(ROOT.glob(f"{name}-*.md"))
    return not path.exists() or (anchor != "" and anchor not in anchors(path))


def test_every_link_leads_somewhere() -> None:
    broken = []
    for path, text in tracked():
        if not path.endswith(".md"):
            continue
        for target in LINK.findall(text):
            if re.match(r"[a-z]+:", target):
                continue
            # An anchor alone is one of the page itself.
            name, hash_, anchor = target.partition("#")
            whole = f"{name or Path(path).name}{hash_}{anchor}"
            if leads_nowhere(whole, os.path.dirname(path)):
                broken.append(f"{path}: {target}")
    assert broken == []


def test_every_mention_of_a_page_leads_somewhere() -> None:
    broken = [
        f"{path}: {target}"
        for path, text in tracked()
        for target in MENTION.findall(text)
        if leads_nowhere(target, "")
    ]
    assert broken == []


def test_every_path_that_a_page_names_is_there() -> None:
    named = {
        path: set(PATH.findall(text))
        for path, text in tracked()
        if path.endswith(".md") and not path.startswith(OTHER_PATHS)
    }
    assert len(named["docs/architecture.md"]) > 60
    gone = [
        f"{page}: {path}"
        for page, paths in named.items()
        for path in sorted(paths)
        if "NNNN" not in path and leads_nowhere(path, "")
    ]
    assert gone == []
