"""README.md and the guides: their programs work as they are written, also the second time."""

import sys
from uuid import uuid4

import pytest

from tests import ROOT
from tests.acceptance.guides.pages import printed, program

README = (ROOT / "README.md").read_text()
CHAT, REST = README.partition("```python\n")[2].split("```\n", 1)


def test_the_chat_remembers_what_it_heard_in_an_earlier_run(address: str) -> None:
    first, second = (printed([sys.executable, "-"], address, CHAT) for _ in range(2))
    asked = [
        f"> {said}" for said in ("I am Alice, and I eat no nuts.", "What may I have for dinner?")
    ]
    assert [line for line in first if line.startswith("> ")] == asked
    # Before anything is said nothing is known.
    assert first[:3] == ["", "", asked[0]]
    known = second[: second.index(asked[0])]
    assert any("I eat no nuts" in line for line in known), second
    assert any("What may I have for dinner?" in line for line in known), second


@pytest.mark.parametrize(
    "page", [REST, (ROOT / "docs/guides/appending.md").read_text()], ids=["README", "appending"]
)
def test_a_program_that_is_run_again_works_again(address: str, page: str) -> None:
    text, _ = program(page)
    assert "connect()" in text
    first, second = (printed([sys.executable, "-"], address, text) for _ in range(2))
    for lines in (first, second):
        assert "Monday" in lines[0], lines


#: The messages that the three lines are given, and what is around them.
AROUND = """
import asyncio
import palimpsest

messages = [
    {{"role": "user", "content": "Alice is allergic to nuts.", "name": "ben"}},
    {{"role": "assistant", "content": "Good to know."}},
]


async def main():
    async with palimpsest.connect() as client:
{lines}

asyncio.run(main())
"""


def test_three_lines_remember_and_recall(address: str) -> None:
    lines, _ = program((ROOT / "docs/guides/getting-started.md").read_text())
    assert len(lines.splitlines()) == 4
    indented = "".join(f"        {line}\n" for line in lines.splitlines())
    text = AROUND.format(lines=indented).replace("alice", f"alice-{uuid4().hex}")
    shown = printed([sys.executable, "-"], address, text)
    assert any(line.endswith("user: Alice is allergic to nuts.") for line in shown), shown
