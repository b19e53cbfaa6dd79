"""docs/guides/asking.md, "Answers": its commands and its program print what it says."""

import re
import sys
from typing import Any, get_args

import pytest
from buf.validate import validate_pb2

from palimpsest import Reader, sync
from palimpsest._async._listening import MANY_QUESTIONS
from palimpsest.v1 import answer_service_pb2
from service.cli import output
from service.domain.values.memory_specs import ReaderName
from service.rpc.pages import MAX_PAGE_SIZE, PAGE_BYTES
from service.settings.config import Limits
from tests.acceptance.guides.pages import commands, printed, program
from tests.acceptance.guides.test_agents_guide import comparable, says
from tests.support.guides import section

PAGE = section("asking", "Answers")
ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def in_words(lines: list[str]) -> list[str]:
    """Lines without their padding, which goes with the length of ids."""
    return [" ".join(line.split()) for line in lines]


@pytest.mark.prove
def test_the_guide_prints_what_it_says(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output.out, "width", 200)
    listed = commands(PAGE.partition("## On the command line")[2])
    assert len(listed) > 8
    for command, lines in listed:
        if "ANSWER" in command:
            with sync.Client(address) as client:
                newest = next(client.session("museum").answers())
            command = command.replace("ANSWER", newest.id)
        shown = [ID.sub("ANSWER", line) for line in says(command, address)]
        assert in_words(shown) == in_words(comparable(command, lines)), command
    text, lines = program(PAGE.partition("## From Python")[2])
    assert "connect()" in text
    text = text.replace("connect()", f"connect({address!r})")
    assert printed([sys.executable, "-"], address, text) == lines


def rows() -> dict[str, str]:
    """Returns the page's tables of two columns."""
    found = (re.split(r" \| ", line.strip("| ")) for line in PAGE.splitlines() if line[:2] == "| ")
    return {name.strip("`"): rest[0] for name, *rest in found if rest}


def rule(message: Any, name: str) -> Any:
    """Returns the rules of a field of a request."""
    return message.DESCRIPTOR.fields_by_name[name].GetOptions().Extensions[validate_pb2.field]


def test_the_limits_are_those_of_the_code() -> None:
    said, ask = rows(), answer_service_pb2.AskRequest
    assert said["a question"] == f"{rule(ask, 'query').string.max_bytes // 1024} KiB"
    schema = rule(ask, "response_schema").string.max_bytes
    assert said["response_schema"] == f"{schema // 1024} KiB"
    many = rule(answer_service_pb2.AskManyRequest, "questions").repeated.max_items
    assert said["questions of one call"] == str(many) == str(MANY_QUESTIONS)
    pending = said["pending answers of a tenant"]
    assert pending.startswith(f"{Limits().max_pending_answers:,} ")
    waiting = said["questions that a server waits for"]
    assert waiting.startswith(f"{Limits().max_waiting_asks:,} ")
    assert said["a page of `ListAnswers"] == f"{MAX_PAGE_SIZE:,} answers, {PAGE_BYTES // 2**20} MiB"
    comment = rule(answer_service_pb2.Rating, "comment").string.max_bytes // 1024
    expected = rule(answer_service_pb2.Rating, "expected").string.max_bytes // 1024
    assert said["a rating"] == f"a comment of {comment} KiB, `expected` of {expected} KiB"


def test_all_readers_are_said() -> None:
    readers = {name.value for name in ReaderName}
    assert readers <= set(rows())
    assert set(get_args(Reader)) == readers | {"unknown"}
