"""The prompts of trees, states, whole logs, forms and schemas, as files that reviews see.

PALIMPSEST_TEST_UPDATE=1 writes them anew.
"""

import json
import os
from collections.abc import Iterator

import pytest

from service.domain.prompting.flows import ModelRequest
from tests import ROOT
from tests.unit.answers.flow_asks import FLOWS

GOLDENS = (ROOT / "tests") / "recorded/prompts"
AREAS = ("tree.", "state.", "whole.", "answer.", "schema.")


def found() -> dict[str, ModelRequest]:
    """Returns the longest prompt of each template: it has most of what may be in one."""
    longest: dict[str, ModelRequest] = {}
    for name in FLOWS:
        for ask in FLOWS[name]():
            held = longest.get(ask.template)
            if ask.template.startswith(AREAS) and (held is None or len(held.text) < len(ask.text)):
                longest[ask.template] = ask
    return longest


PROMPTS = found()


def written(ask: ModelRequest) -> str:
    return "".join(_lines(ask))


def _lines(ask: ModelRequest) -> Iterator[str]:
    for segment in ask.segments:
        yield f"=== {segment.kind.value}{', reusable' if segment.reusable else ''}\n{segment.text}"
        yield "" if segment.text.endswith("\n") else "\n"
    yield f"=== at most {ask.max_output_tokens} tokens\n"
    if ask.reply_schema is not None:
        yield f"=== by a schema\n{json.dumps(ask.reply_schema, indent=2)}\n"


@pytest.mark.parametrize("template", PROMPTS)
def test_a_prompt_is_as_it_was_reviewed(template: str) -> None:
    file = GOLDENS / f"{template.replace('/', '.')}.txt"
    if os.environ.get("PALIMPSEST_TEST_UPDATE"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(written(PROMPTS[template]))
    assert file.read_text() == written(PROMPTS[template])


def test_there_is_no_file_of_a_prompt_that_is_no_more() -> None:
    mine = {file.stem for file in GOLDENS.glob("*.txt") if file.name.startswith(AREAS)}
    assert mine == {template.replace("/", ".") for template in PROMPTS}
