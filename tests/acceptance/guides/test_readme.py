"""README.md, docs/guides/appending.md: their programs work, also the second time."""

import sys

import pytest

from tests import ROOT
from tests.acceptance.guides.pages import printed, program


@pytest.mark.parametrize("page", ["README.md", "docs/guides/appending.md"])
def test_a_program_that_is_run_again_works_again(address: str, page: str) -> None:
    text, _ = program((ROOT / page).read_text())
    assert "connect()" in text
    text = text.replace("connect()", f"connect({address!r})")
    first, second = (printed([sys.executable, "-"], address, text) for _ in range(2))
    for lines in (first, second):
        assert "Monday" in lines[0], lines
