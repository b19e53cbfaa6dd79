"""The guide to operations names every metric that is made, and none that is not."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
MADE = re.compile(r"create_\w+\(\s*\"(palimpsest\.[\w.]+)\"")


def made() -> set[str]:
    found = set()
    for folder in ("service", "storage"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= set(MADE.findall(path.read_text()))
    gauges = (ROOT / "service" / "usecases" / "gauges.py").read_text()
    found |= {f"palimpsest.{name}" for name in re.findall(r'^ +\("([a-z.]+)", "', gauges, re.M)}
    return found | set(re.findall(r'"(palimpsest\.database\.\w+)"', gauges))


def test_every_metric_is_in_a_guide() -> None:
    told = "".join(path.read_text() for path in GUIDES.glob("*.md"))
    missing = {name for name in made() if f"`{name}`" not in told}
    assert not missing


def test_the_table_of_the_guide_has_no_other() -> None:
    page = (GUIDES / "operations.md").read_text()
    section = page.partition("## What is measured")[2].partition("\n## ")[0]
    told = set(re.findall(r"^\| `(palimpsest\.[\w.]+)`", section, re.MULTILINE))
    assert len(told) >= 10
    assert told <= made()
