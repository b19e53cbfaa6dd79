"""Budgets and costs as a user has them: real processes, the offline model."""

import json
from typing import Any
from uuid import uuid4

from service.config import OFFLINE_MODEL
from tests.acceptance.test_cli import assert_one_clear_line, run, succeed
from tests.harness import eventually

SCHEMA = b"class Notes:\n    topics: dict[str, list[str]]\n"


def lines_of(*arguments: str, **at: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in succeed(*arguments, "--json", **at).splitlines()]


def test_a_budget_holds_a_memory_until_it_is_raised(address: str) -> None:
    session = f"cost-{uuid4().hex}"
    at = {"PALIMPSEST_ADDRESS": address}
    named = ("-s", session)
    succeed("session", "create", session, **at)
    create = ("memory", "create", "m", "--schema", "-", "--chunk-tokens", "1", *named)
    succeed(*create, stdin=SCHEMA, **at)
    said = succeed("budget", "set", "total", *named, "-m", "m", "--tokens", "9000", **at)
    assert said == f"{session} / m: 9,000 tokens in total, 0 spent\n"
    ingest = ("ingest", "-", *named, "-m", "m", "--chunk-characters", "100")
    text = "".join(f"Pier {n}\n======\n\nPier {n} is a pier of grey stone.\n\n" for n in range(20))
    stopped = run(*ingest, stdin=text.encode(), **at)
    assert_one_clear_line(stopped, "memory 'm' is held: the budget of memory 'm'")
    assert "9,000 tokens in total" in stopped.stderr
    (held,) = lines_of("memory", "list", *named, **at)
    assert (held["status"], held["stall"]) == ("active", None)
    assert "goes on when the budget is raised or cleared" in held["held_reason"]
    assert 0 < held["applied_position"] < held["head"]
    assert " held " in succeed("memory", "list", *named, **at)
    assert "held: the budget of memory" in succeed("memory", "show", "m", *named, **at)
    refused = run("ask", "?", *named, "-m", "m", "--applied", **at)
    assert_one_clear_line(refused, "memory 'm' is held: the budget")
    (budget,) = lines_of("budget", "list", *named, **at)
    assert 0 < budget["spent_tokens"] <= 9000
    assert budget["reserved_tokens"] == 0
    assert succeed("budget", "clear", "total", *named, "-m", "m", **at) == (
        "cleared; 1 held memory tries again\n"
    )

    def applied() -> bool:
        (now,) = lines_of("memory", "list", *named, **at)
        return bool(now["applied_position"] == now["head"])

    eventually("the memory goes on", applied)
    (after,) = lines_of("memory", "list", *named, **at)
    assert after["held_reason"] is None


def test_costs_are_shown_with_what_is_measured_and_what_is_simulated(address: str) -> None:
    session = f"cost-{uuid4().hex}"
    at = {"PALIMPSEST_ADDRESS": address}
    text = "".join(f"Pier {n}\n======\n\nPier {n} is a pier of grey stone.\n\n" for n in range(9))
    ingest = ("ingest", "-", "-s", session, "-m", "m", "--chunk-characters", "100")
    succeed(*ingest, stdin=text.encode(), **at)
    (found,) = lines_of("cost", session, "-m", "m", **at)
    (line,) = found["lines"]
    assert (line["memory"], line["purpose"], line["model"]) == ("m", "revise", OFFLINE_MODEL)
    compared = found["comparison"]
    assert set(compared["simulated"]) == {
        "as_kept",
        "in_place",
        "amendments",
        "adaptive",
        "optimum",
    }
    assert found["reading"]["total_tokens"] == found["total"]["input_tokens"]
    shown = succeed("cost", session, "-m", "m", **at)
    assert "reading the log, measured" in shown
    assert "simulated: optimum, in hindsight" in shown
    assert "Compare simulated lines with one another" in shown
    assert "residual" not in shown, "there is nothing to compare predictions with"
    assert f"all {compared['steps']} of {compared['steps']} steps" in shown
    everyone = succeed("cost", **at)
    assert session in everyone
    (by_day,) = lines_of("cost", session, "--by-day", **at)
    assert [one["memory"] for one in by_day["lines"]] == ["m"]
    assert by_day["lines"][0]["day"] is not None
    assert by_day["total"]["calls"] == found["total"]["calls"]
    (none,) = lines_of("cost", session, "--day", "2020-02-29", **at)
    assert (none["lines"], none["comparison"]) == ([], None)
