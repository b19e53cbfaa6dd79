"""The worked examples of docs/guides/prism.md, with replies as models write them.

`tests/recorded` has the replies to each step and to the question; the page shows the
memory that they make.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from service.cli.tasks import TASKS, Task
from service.domain.answers.drafting import AnswerDraft
from service.domain.prism import asking as prism
from service.domain.prism.amendments import Op, Rules
from service.domain.prism.memory import PrismMemory
from service.domain.prism.spec import PrismSpec
from service.domain.prompting.flows import Flow, ModelReply, ModelRequest
from service.domain.values.paths import Path
from tests import ROOT
from tests.support.guides import section
from tests.unit.support.logged import logged

PAGE = section("prism", "Worked examples")
_HEADER = re.compile(r"^=== (?:positions (\d+)-(\d+)(?: of the last (\d+))?|question (.*))$", re.M)


@dataclass
class Step:
    """The positions that a reply is to, or the question."""

    positions: range
    question: str
    reply: str


def recorded(name: str, count: int) -> Iterator[Step]:
    text = (ROOT / "tests" / "recorded" / f"{name}.txt").read_text()
    found = list(_HEADER.finditer(text))
    for match, following in zip(found, [*found[1:], None], strict=True):
        reply = text[match.end() + 1 : following.start() if following else len(text)]
        if match[4]:
            yield Step(range(0), match[4], reply)
            continue
        before = count - int(match[3]) if match[3] else 0
        yield Step(range(before + int(match[1]), before + int(match[2]) + 1), "", reply)


def run(flow: Flow[Any], reply: str) -> tuple[ModelRequest, Any]:
    (ask,) = next(flow)
    with pytest.raises(StopIteration) as end:
        flow.send([ModelReply(text=reply, model="recorded")])
    return ask, end.value.value


def work(name: str, job: Task) -> tuple[PrismMemory, list[Op], AnswerDraft[Path]]:
    spec = PrismSpec(schema_source=job.schema, task=job.task, question=job.question)
    memory = PrismMemory.create(spec.schema())
    ops: list[Op] = []
    for number, step in enumerate(recorded(name, len(job.texts)), start=1):
        if step.question:
            assert step.question in job.questions, "the question is one of the demo's"
            ask, draft = run(prism.answer(spec, memory, step.question, marker_key=b"k"), step.reply)
            assert memory.value_json in ask.text.replace("\n", "") or memory.batches
            return memory, ops, draft
        chunks = [logged(position, job.texts[position - 1]) for position in step.positions]
        flow = prism.revise(spec, memory, chunks, marker_key=b"k", rules=Rules())
        ask, revision = run(flow, step.reply)
        assert all(one.chunk.text in ask.text for one in chunks)
        assert revision.rejections == ()
        assert not any(one.op_corrected for one in revision.amendments)
        ops += [one.op for one in revision.amendments]
        memory = memory.apply(number, revision.amendments)
    raise AssertionError("the recording ends with a question")


@pytest.mark.parametrize(
    ("name", "said"),
    [("book", "never again be dark"), ("code", "indent"), ("tables", "Voyages 1, 2 and 6")],
)
def test_a_worked_example_gives_what_the_page_shows(name: str, said: str) -> None:
    memory, ops, draft = work(name, TASKS[name]())
    assert said in draft.text
    assert draft.sources, "every path of the answer is in the memory"
    assert Op.ADD in ops
    (shown,) = re.findall(rf"<!-- memory: {name} -->\n+```json\n(.*?)```", PAGE, re.S)
    assert json.loads(shown) == memory.value
    (schema,) = re.findall(rf"<!-- schema: {name} -->\n+```text\n(.*?)```", PAGE, re.S)
    assert schema == TASKS[name]().schema
    assert draft.text in " ".join(PAGE.split())
