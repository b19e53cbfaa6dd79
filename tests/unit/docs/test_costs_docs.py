"""The guide to costs: its tables of prompts are what `verification.benchmarks prompts` counts."""

from tests.support.guides import section
from verification.benchmarks import prompts

PAGE = section("models", "Costs and budgets")


def rows(columns: int) -> dict[str, list[str]]:
    """Returns the rows of the tables with so many columns, by their first cell."""
    lines = PAGE.splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    return {row[0].strip("`"): row for row in cells if len(row) == columns}


def test_the_tokens_of_prompts_and_of_their_calls_are_those_of_today() -> None:
    counted = prompts.run(0)
    told = rows(5)
    for template, found in counted["templates"].items():
        row = told[template.split("/")[0]]
        assert row[2] == f"{found['instructions']:,}", template
        assert row[4] == (f"{found['schema']:,}" if found["schema"] else "-"), template
    told = rows(9)
    for name, call in counted["calls"].items():
        cached = f"{call['usd_1000_cached']:.2f}" if call["cached"] else "-"
        now = [f"{call['input']:,}", f"{call['reply']:,}", f"{call['usd_1000']:.2f}", cached]
        assert told[name][2::2] == now, name
