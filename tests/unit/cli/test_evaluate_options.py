"""What `palimpsest eval` refuses before anything is started: one sentence each."""

import json
from pathlib import Path

import pytest

from service.cli.commands import app
from service.cli.output import CommandError

DOCUMENT = {"id": "a", "text": "Ann fed the fox.", "questions": [{"q": "Who?", "gold": "Ann"}]}


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps(DOCUMENT) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("said", "about"),
    [
        ("--strategies dciso,guess", "there is no strategy 'guess'; there are all and whole"),
        ("--strategies ,", "--strategies names none"),
        ("--resume", "--resume goes on with the report that --report names"),
        ("--report no/r.json", "--report: there is no folder"),
        ("--plot no/p.svg", "--plot: there is no folder"),
        ("--plot set.jsonl", "is there already; name another file for --plot"),
        ("--export set.jsonl", "is there already; name another file for --export"),
        ("--report set.jsonl", "is there already; --resume goes on with it"),
        ("--report set.jsonl --resume", "is no report of this release"),
        ("--actions guess", "there is no action 'guess'; there are task_understanding"),
        ("--actions move,answer", "--actions: without retrieve, append and merge"),
        ("--actions merge", "--actions: without answer and aggregation"),
        ("--window 600 --strategies retrieval", "full-left, full-right, retrieval, recurrence"),
        ("--address x:1 --base-url http://y", "--base-url is for a service of its own"),
        ("--address x:1 --embedding-model a/b", "--embedding-model is for a service of its own"),
        ("--address x:1 --data-dir .", "--data-dir is for a service of its own"),
    ],
)
def test_questions_that_cannot_be_asked(
    said: str, about: str, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(dataset).parent)
    refused(["eval", "--dataset", dataset, "--limit", "1", *said.split()], about)


@pytest.mark.parametrize(
    ("said", "about"),
    [
        ("", "set.jsonl names no evidence"),
        ("--ways words,guess", "there is no way 'guess'; there are words, vectors, hybrid"),
        ("--ways ,", "--ways names none"),
        ("--report set.jsonl", "is there already; name another file for --report"),
        ("--plot no/p.svg", "--plot: there is no folder"),
        ("--address x:1 --embedding-model a/b", "--embedding-model is for a service of its own"),
    ],
)
def test_searches_that_cannot_be_made(
    said: str, about: str, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(dataset).parent)
    refused(["eval", "search", "--dataset", dataset, "--limit", "1", *said.split()], about)


def test_a_dataset_names_the_line_that_is_wrong(dataset: str) -> None:
    with Path(dataset).open("a") as file:
        file.write("{]\n")
    refused(["eval", "--dataset", dataset, "--limit", "1"], "set.jsonl, line 2 is not JSON")


def refused(arguments: list[str], about: str) -> None:
    with pytest.raises(CommandError) as error:
        app(arguments, standalone_mode=False)
    assert about in str(error.value)
    assert len(str(error.value).splitlines()) == 1
