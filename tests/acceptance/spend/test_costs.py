"""Budgets and costs as a user has them: real processes, the offline model."""

import json
from typing import Any
from uuid import uuid4

from service.settings.config import OFFLINE_MODEL
from tests import ROOT
from tests.acceptance.cli.test_cli import assert_one_clear_line, run, succeed
from tests.support.harness import eventually

#: Those of the guide to agents.
STEPS = ROOT / "docs/guides/steps.jsonl"
SCHEMA = b"class Notes:\n    topics: dict[str, list[str]]\n"


def lines_of(*arguments: str, **at: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in succeed(*arguments, "--json", **at).splitlines()]


def test_a_budget_holds_a_memory_until_it_is_raised(address: str) -> None:
    session = f"cost-{uuid4().hex}"
    at = {"PALIMPSEST_ADDRESS": address}
    named = ("-s", session)
    succeed("session", "create", session, **at)
    create = ("memory", "create", "prism", "m", "--schema", "-", "--chunk-tokens", "1", *named)
    succeed(*create, stdin=SCHEMA, **at)
    said = succeed("budget", "set", "total", *named, "-m", "m", "--tokens", "9000", **at)
    assert said == f"{session} / m: 9,000 tokens in total, 0 spent\n"
    ingest = ("ingest", "-", *named, "-m", "m", "--chunk-characters", "100")
    text = "".join(f"Pier {n}\n======\n\nPier {n} is a pier of grey stone.\n\n" for n in range(20))
    stopped = run(*ingest, stdin=text.encode(), **at)
    assert_one_clear_line(stopped, "memory 'm' is held: the budget of memory 'm'")
    assert "9,000 tokens in total" in stopped.stderr
    (held,) = lines_of("memory", "list", *named, **at)
    assert held["status"] == "over_budget"
    assert "goes on when the budget is raised or deleted" in held["blocked"]["cause"]
    assert 0 < held["applied_position"] < held["head"]
    assert " over budget " in succeed("memory", "list", *named, **at)
    assert "held: the budget of memory" in succeed("memory", "show", "m", *named, **at)
    refused = run("ask", "?", *named, "-m", "m", "--applied", **at)
    assert_one_clear_line(refused, "memory 'm' is held: the budget")
    (budget,) = lines_of("budget", "list", *named, **at)
    assert 0 < budget["spent_tokens"] <= 9000
    assert budget["reserved_tokens"] == 0
    raised = ("budget", "set", "total", *named, "-m", "m", "--tokens", "9001")
    stale = run(*raised, "--etag", "0", **at)
    assert_one_clear_line(stale, "was changed since it was read: read it again, then decide")
    succeed(*raised, "--etag", budget["etag"], **at)
    assert succeed("budget", "delete", "total", *named, "-m", "m", **at) == "deleted\n"

    def applied() -> bool:
        (now,) = lines_of("memory", "list", *named, **at)
        return bool(now["applied_position"] == now["head"])

    eventually("the memory goes on", applied)
    (after,) = lines_of("memory", "list", *named, **at)
    assert after["blocked"] is None


def test_costs_are_shown_with_what_is_measured_and_what_is_simulated(address: str) -> None:
    session = f"cost-{uuid4().hex}"
    at = {"PALIMPSEST_ADDRESS": address}
    text = "".join(f"Pier {n}\n======\n\nPier {n} is a pier of grey stone.\n\n" for n in range(9))
    ingest = ("ingest", "-", "-s", session, "-m", "m", "--chunk-characters", "100")
    succeed(*ingest, stdin=text.encode(), **at)
    (found,) = lines_of("cost", "-s", session, "-m", "m", **at)
    (line,) = found["lines"]
    assert (line["memory"], line["purpose"], line["model"]) == ("m", "revise", OFFLINE_MODEL)
    compared = found["comparison"]
    assert set(compared["simulated"]) == {
        "as_kept",
        "in_place",
        "amendments",
        "adaptive",
    }
    assert found["reading"]["total_tokens"] == found["total"]["input_tokens"]
    shown = succeed("cost", "-s", session, "-m", "m", **at)
    assert "reading the log, measured" in shown
    assert "simulated: adaptive" in shown
    assert "Compare simulated lines with one another" in shown
    assert "not classified" not in shown, "there is nothing to compare predictions with"
    assert f"all {compared['steps']} of {compared['steps']} steps" in shown
    everyone = succeed("cost", **at)
    assert session in everyone
    (by_day,) = lines_of("cost", "-s", session, "--by-day", **at)
    # Two of them around midnight.
    assert {one["memory"] for one in by_day["lines"]} == {"m"}
    assert all(one["day"] is not None for one in by_day["lines"])
    assert by_day["total"]["calls"] == found["total"]["calls"]
    (none,) = lines_of("cost", "-s", session, "--day", "2020-02-29", **at)
    assert (none["lines"], none["comparison"]) == ([], None)


def test_the_loops_over_an_agents_steps_are_shown(address: str) -> None:
    session = f"cost-{uuid4().hex}"
    at = {"PALIMPSEST_ADDRESS": address}
    named = ("-s", session)
    succeed("session", "create", session, **at)
    task = ("--task", "Find the red key and open the gate.")
    settings = (*task, "--period", "5", "--state-tokens", "60")
    succeed("memory", "create", "state", "state", *settings, *named, **at)
    first = STEPS.read_text().splitlines()[0]
    succeed("state", "record", "-", *named, stdin=first.encode(), **at)
    shown = succeed("cost", "-s", session, "-m", "state", **at)
    assert "an agent's one step, in tokens" in shown
    assert "nothing is compressed: formula and simulation take the memory's settings" in shown
    rest = "\n".join(STEPS.read_text().splitlines()[1:])
    succeed("state", "record", "-", *named, stdin=rest.encode(), **at)
    succeed("state", "context", "--applied", *named, "-m", "state", **at)
    (found,) = lines_of("cost", "-s", session, "-m", "state", **at)
    told = found["accounting"]
    assert (told["steps"], told["task_tokens"], told["period"]) == (14, 9, 5)
    standard, recursive, pcc = told["standard"], told["recursive"], told["pcc"]
    assert (standard["processed_tokens"], standard["max_context_tokens"]) == (3702, 443)
    spent = found["total"]["input_tokens"] + found["total"]["output_tokens"]
    assert pcc["compression_tokens"] == spent > 0
    assert pcc["total_tokens"] == pcc["processed_tokens"] + spent
    assert told["standard_ratio"] == standard["total_tokens"] / pcc["total_tokens"]
    shown = succeed("cost", "-s", session, "-m", "state", **at)
    assert "reading the log, measured (compress;" in shown
    rows = {line[:13]: line.split()[-6:] for line in shown.splitlines()}
    ratio = f"{told['standard_ratio']:.2f}"
    assert rows["standard loop"] == ["3,702", "3,628", "0", "3,702", ratio, "443"]
    assert rows["full recursiv"][1:3] == ["-", f"{recursive['compression_tokens']:,}"]
    assert rows["this memory  "][3:5] == [f"{pcc['total_tokens']:,}", "1.00"]
    assert "task prompt 9 tokens, a step 33.4, vectors " in shown
    assert ", 5.0 steps a compression" in shown
    shown = succeed("cost", "-s", session, "-m", "state", "--system-tokens", "1000", **at)
    assert "system prompt 1,000 tokens, task prompt 9 tokens, a step 33.4" in shown
    assert f"{3702 + 14 * 1000:,}" in shown
