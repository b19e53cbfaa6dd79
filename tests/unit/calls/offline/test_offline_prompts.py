"""Every prompt keeps to the layout that the offline model reads, and it knows them all."""

import re
from dataclasses import replace

import pytest

from service.domain.prompting.flows import SegmentKind
from service.llm.offline.model import REPLIES, complete
from service.llm.offline.prompt import Prompt
from tests.unit.answers.flow_asks import FLOWS
from tests.unit.answers.test_prompt_goldens_browse import OFFERED, PARTS, PROMPTS

#: What these flows seldom ask, or evaluation does; other tests of this folder do.
OTHERS = {
    *("baseline.read", "baseline.carry", "browse.guess", "tree.guess"),
    "prism.consolidate-part",
}


@pytest.mark.parametrize("name", FLOWS)
def test_a_prompt_can_be_read_back(name: str) -> None:
    for ask in FLOWS[name]():
        prompt = Prompt(ask)
        # Instructions have examples, whose sections give way to the real ones.
        shown = "".join(one.text for one in ask.segments if one.kind is not SegmentKind.TASK)
        sections = set(re.findall(r"^\[([A-Z][A-Z ]+)\]\n", shown, re.MULTILINE))
        marks = re.findall(r"^<<<data \S+\n", shown, re.MULTILINE)
        assert sections, "what comes once has a heading"
        assert len(marks) == sum(len(prompt.texts(section)) for section in sections)
        assert not any("<<<data" in prompt.plain(section) for section in sections)
        assert complete(ask), "it replies"
        assert complete(ask) == complete(ask), "always the same"


def test_a_text_of_a_source_that_is_not_verified_is_read_too() -> None:
    parts = [PARTS[0], replace(PARTS[1], is_unverified=True)]
    numbered = Prompt(PROMPTS.piece(parts, (), OFFERED)).numbered("TEXT")
    assert numbered == [(7, "Ann came in."), (8, "Ben left at dawn.")]


def test_it_answers_every_template_there_is() -> None:
    templates = {ask.template.partition("/")[0] for asks in FLOWS.values() for ask in asks()}
    asked = {name.removesuffix("-focused") for name in templates}
    assert set(REPLIES) - asked <= OTHERS
    assert asked <= set(REPLIES)
