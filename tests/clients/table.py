"""The table of docs/reference/clients.md: which feature which client has, as a run found it.

`python -m tests.clients.table check` fails where the page differs from the last run of all
scripts; `write` writes the page anew. A client that was not run keeps its column.
"""

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests import ROOT
from tests.clients.drivers import CLIENTS
from tests.clients.runner import files

PAGE = ROOT / "docs/reference/clients.md"
#: What the newest run found: a list of results for each client.
RESULTS = ROOT / ".cache/clients/results.json"
BEGIN, END = "<!-- written by tests/clients/table.py -->\n", "<!-- end -->\n"

Results = Mapping[str, Sequence[Mapping[str, Any]]]


def features() -> list[tuple[str, str, int]]:
    """Returns name, title and number of scripts of each feature, in order."""
    found = sorted(files().values(), key=lambda one: (one.get("order", 99), one["feature"]))
    return [(one["feature"].replace(" ", "_"), one["title"], len(one["scripts"])) for one in found]


def table(results: Results, page: str) -> str:
    """Returns the part of the page that a run writes."""
    columns = {one.name: column(results.get(one.name, ()), page, one.title) for one in CLIENTS}
    lines = [
        f"| feature | scripts | {' | '.join(one.title for one in CLIENTS)} |",
        f"| --- | --- | {' | '.join('---' for _ in CLIENTS)} |",
    ]
    for feature, title, scripts in features():
        cells = " | ".join(columns[one.name].get(title, "") for one in CLIENTS)
        link = f"[{title}](../../clients/conformance/{feature}.json)"
        lines.append(f"| {link} | {scripts} | {cells} |")
    return "\n".join([*lines, "", *notes(results, page)]) + "\n"


def column(found: Sequence[Mapping[str, Any]], page: str, client: str) -> dict[str, str]:
    """Returns the cells of a client by the titles of the features."""
    if not found:
        return read_column(page, client)
    passed = Counter(one["feature"] for one in found if one["outcome"] == "passed")
    cells = {}
    for feature, title, scripts in features():
        count = passed[feature]
        cells[title] = "yes" if count == scripts else f"{count} of {scripts}" if count else "no"
    return cells


def read_column(page: str, client: str) -> dict[str, str]:
    """Returns the cells that the page has of a client."""
    rows = [
        [cell.strip() for cell in line.strip("| \n").split(" | ")]
        for line in part(page).splitlines()
        if line.startswith("|")
    ]
    if not rows or client not in rows[0]:
        return {}
    at = rows[0].index(client)
    return {re.sub(r"\[(.*)\].*", r"\1", row[0]): row[at] for row in rows[2:] if len(row) > at}


def notes(results: Results, page: str) -> Iterable[str]:
    """Yields why clients leave scripts out, and how many of each feature."""
    for client in CLIENTS:
        if client.name not in results:
            begins = f"- {client.title}: "
            yield from (one for one in part(page).splitlines() if one.startswith(begins))
            continue
        causes = defaultdict[str, Counter[str]](Counter)
        for one in results[client.name]:
            if one.get("unsupported"):
                causes[one["unsupported"]][one["feature"].replace("_", " ")] += 1
        for cause, counts in sorted(causes.items()):
            scripts = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
            yield f"- {client.title}: {cause}: {scripts}."


def part(page: str) -> str:
    """Returns the part of the page that a run writes, as it is."""
    return page.partition(BEGIN)[2].partition(END)[0]


def main(action: str) -> None:
    """Checks the page, or writes it."""
    results: Results = json.loads(RESULTS.read_text())
    page = PAGE.read_text()
    wanted = table(results, page)
    left_out = [one.title for one in CLIENTS if one.name not in results]
    if left_out:
        print(f"not run, and as before in the table: {', '.join(left_out)}")
    if part(page) == wanted:
        return
    if action != "write":
        raise SystemExit(
            f"{PAGE.relative_to(ROOT)} is not what the run found; write it by"
            " `.venv/bin/python -m tests.clients.table write`"
        )
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + BEGIN + wanted + END + rest.partition(END)[2])


if __name__ == "__main__":
    main(sys.argv[1])
