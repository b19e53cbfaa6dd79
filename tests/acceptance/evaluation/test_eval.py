"""`palimpsest eval` as a user has it: all strategies end to end, and what goes wrong."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli.test_cli import assert_one_clear_line, run, succeed
from tests.support import forking
from tests.support.harness import Servers, api, worker

# Servers, an API and a worker of its own; several times that on a busy machine.
pytestmark = pytest.mark.timeout(400)
SECONDS = 300
READERS = ["whole", "prism", "memwalker", "pcc", "dciso", "dciso-scan", "auto"]
BASELINES = ["full-left", "full-right", "retrieval", "recurrence"]
STRATEGIES = [*READERS, *BASELINES]

FILLER = "The grey sea rolled on under the low clouds and nobody came along the shore. "


def dataset(folder: Path) -> Path:
    """Writes a document of sections and a conversation, each with a question in one place."""
    story = [FILLER * 12 for _ in range(12)]
    story[8] = f"{FILLER}The lighthouse keeper painted his boat with yellow varnish. {FILLER}"
    turns = [{"i": n, "speaker": "Ann", "text": FILLER * 3} for n in range(6)]
    turns[4] = {"i": 4, "speaker": "Ben", "text": "We buy the telescope from the museum."}
    documents = [
        {
            "id": "A story / 1",
            "chunks": [{"n": n, "text": text} for n, text in enumerate(story, start=1)],
            "questions": [
                {
                    "q": "What did the keeper paint with yellow varnish?",
                    "gold": "his boat",
                    "evidence": {"sections": [9]},
                }
            ],
        },
        {
            "id": "meeting",
            "turns": turns,
            "questions": [
                {
                    "q": "What do we buy from the museum?",
                    "gold": "the telescope",
                    "options": ["the telescope", "the boat"],
                    "evidence": {"turn_spans": [[4, 4]]},
                },
                {"q": "Why did the volcano erupt?", "gold": "nobody knows"},
            ],
        },
    ]
    path = folder / "tiny.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


@pytest.fixture(scope="module")
def place(servers: Servers) -> Iterator[dict[str, str]]:
    """Yields a service that is there already: its address, and the URL of its database."""
    url = servers.new_database()
    with api(url) as (_, address), worker(url):
        yield {"address": address, "url": url}


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def evaluate(folder: Path, *arguments: str, **environment: Any) -> str:
    asked = ("eval", "--dataset", str(dataset(folder)), "--limit", "3", *arguments)
    variables = {**os.environ, "COLUMNS": "200", **environment}
    done = forking.run(asked, environment=variables, seconds=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.prove
def test_all_strategies_end_to_end(folder: Path) -> None:
    report, exported, plot = (folder / name for name in ("r.json", "train.jsonl", "p.svg"))
    shown = evaluate(
        folder,
        *("--strategies", ",".join(STRATEGIES), "--segment-tokens", "256", "--chunk-tokens", "512"),
        *("--report", str(report), "--export", str(exported), "--plot", str(plot)),
    )
    for name in (*STRATEGIES, "evidence cited", "gold cited", "stray ratio", "building"):
        assert name in shown

    found = read(report)
    assert found["complete"] is True
    assert [one["strategy"] for one in found["summaries"]] == STRATEGIES
    for one in found["summaries"]:
        assert (one["questions"], one["failed"]) == (3, 0)
        assert one["spent"]["calls"] >= 3 or one["strategy"] == "memwalker"
        assert one["spent"]["input_tokens"] > 0
        assert f">{one['strategy']}<" in plot.read_text()
    questions = {
        (one["strategy"], one["document"], one["number"]): one for one in found["questions"]
    }
    assert len(questions) == 3 * len(STRATEGIES)
    sessions = {(name, document): one["session"] for (name, document, _), one in questions.items()}
    for document in ("A story / 1", "meeting"):
        assert len({sessions[name, document] for name in READERS}) == 1, "they share a session"
    walked = questions["memwalker", "A story / 1", 1]
    assert walked["walk"]["valid_actions"] >= 2
    assert walked["evidence_cited"] == 1.0
    assert "yellow varnish" in walked["answer"]
    for name in ("whole", "dciso", "memwalker", "full-left", "full-right", "retrieval"):
        assert questions[name, "meeting", 1]["answer"] == "the telescope"
    assert questions["whole", "A story / 1", 1]["evidence_shown"] == 1.0
    assert questions["whole", "A story / 1", 1]["gold_cited"] == 1.0
    chosen = {one["chosen"] for one in questions.values()}
    assert chosen == {"", "whole"}, "only the automatic reader chooses, and these fit a prompt"
    built = {
        one["strategy"]: one["spent"] for one in found["builds"] if one["document"] == "A story / 1"
    }
    assert built["memwalker"]["calls"] >= 12
    assert built["prism"]["calls"] >= 4
    assert built["pcc"]["calls"] == 1, "each counts what it needs, and no more"

    examples = [json.loads(line) for line in exported.read_text().splitlines()]
    right = [one["answer_id"] for one in questions.values() if one["exported"]]
    assert right
    assert {one["answer"] for one in examples} == set(right)
    for one in examples:
        assert [turn["role"] for turn in one["messages"]] == ["user", "assistant"]
    assert_one_clear_line(
        run(
            "eval", "--dataset", str(folder / "tiny.jsonl"), "--limit", "3", "--report", str(report)
        ),
        "is there already; --resume goes on with it",
    )


@pytest.mark.prove
def test_searches_find_the_evidence(folder: Path, place: dict[str, str]) -> None:
    report, plot = folder / "report.json", folder / "plot.svg"
    shown = succeed(
        *("eval", "search", "--dataset", str(dataset(folder)), "--limit", "9", "--rerank"),
        *("--ways", "words,vectors,stemmed", "--address", place["address"]),
        *("--report", str(report), "--plot", str(plot)),
    )
    for name in ("words", "stemmed", "reranked", "recall@1", "recall@10", "mrr"):
        assert name in shown
    found = read(report)
    of = {one["way"]: one for one in found["summaries"]}
    # Two questions have evidence.
    assert (of["words"]["questions"], of["words"]["failed"], of["words"]["mrr"]) == (2, 0, 1.0)
    assert (of["vectors"]["failed"], of["vectors"]["mrr"]) == (2, 0.0), "there are none here"
    assert of["reranked"]["recall"][-1] == of["stemmed"]["recall"][-1] == 1.0
    assert of["words"]["intervals"]["mrr"] == [1.0, 1.0]
    assert "2 failed:" in shown
    assert ">words<" in plot.read_text()
    assert len(found["searches"]) == 8


@pytest.mark.prove
def test_an_interrupted_run_goes_on(folder: Path, place: dict[str, str]) -> None:
    path = folder / "report.json"
    kept = ("--report", str(path), "--address", place["address"])
    at = {"PALIMPSEST_DATABASE_URL": place["url"]}
    evaluate(folder, *kept, "--strategies", "full-left,memwalker,prism", **at)
    before = read(path)
    # As it would be had the run ended early: an outcome is missing, another one failed.
    cut = read(path)
    cut["complete"], cut["questions"] = False, cut["questions"][1:]
    cut["questions"][0]["failure"] = "the model could not be reached"
    path.write_text(json.dumps(cut))

    evaluate(folder, *kept, "--strategies", "memwalker,prism,full-left", "--resume", **at)
    after = read(path)
    assert after["run_id"] == before["run_id"]
    assert after["complete"] is True

    def outcomes(report: dict[str, Any]) -> list[tuple[Any, ...]]:
        names = ("strategy", "document", "number", "answer", "failure", "session")
        return sorted(tuple(str(one[name]) for name in names) for one in report["questions"])

    assert outcomes(after) == outcomes(before), "each has the outcome that it had"
    built = [[(one["document"], one["spent"]) for one in r["builds"]] for r in (before, after)]
    assert built[0] == built[1], "what is kept is built and paid once"
    done = run("eval", "--dataset", str(folder / "tiny.jsonl"), "--limit", "2", *kept, "--resume")
    assert_one_clear_line(done, "was made with limit 3, not 2")


def test_what_cannot_be_run_is_one_clear_line(folder: Path) -> None:
    # tests/unit/cli/test_evaluate_options.py has the others, in one process.
    done = run("eval", "--dataset", str(folder / "none.jsonl"), "--limit", "1")
    assert_one_clear_line(done, "No such file")
    done = run("eval", "--dataset", str(dataset(folder)), "--limit", "0")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_baselines_need_the_ledger_of_the_service(folder: Path) -> None:
    done = run("eval", "--dataset", str(dataset(folder)), "--limit", "1", "--address", "x:1")
    assert_one_clear_line(done, "baselines ask the model themselves")


@pytest.mark.prove
def test_questions_that_fail_are_shown(folder: Path, place: dict[str, str]) -> None:
    # Texts that leave a question no room in the window.
    document = {"id": "a", "text": FILLER, "questions": [{"q": "why " * 2000, "gold": "a"}]}
    path, report = folder / "long.jsonl", folder / "report.json"
    path.write_text(json.dumps(document))
    said = succeed(
        *("eval", "--dataset", str(path), "--limit", "9", "--window", "2048", "--json"),
        *("--strategies", "full-right", "--address", place["address"], "--report", str(report)),
        PALIMPSEST_DATABASE_URL=place["url"],
    )
    (summary,) = json.loads(said)["summaries"]
    assert (summary["questions"], summary["failed"], summary["score"]) == (1, 1, 0.0)
    (result,) = read(report)["questions"]
    assert result["failure"] == "a window of 2048 tokens has no room for a text and this question"
    shown = succeed(
        *("eval", "--dataset", str(path), "--limit", "9", "--window", "2048"),
        *("--strategies", "full-right", "--address", place["address"]),
        PALIMPSEST_DATABASE_URL=place["url"],
    )
    assert "1 failed: a window of 2048 tokens" in shown
