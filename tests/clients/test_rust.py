"""The Rust program of docs/guides/api.md, "Other languages": it prints what the page says."""

import re
from collections.abc import AsyncIterator
from shutil import which

import pytest

from tests import ROOT
from tests.acceptance.guides.pages import printed
from tests.clients.conftest import Services
from tests.support.guides import section

PROGRAM = ROOT / "tests/clients/rust"
#: What `make test-clients` builds.
BUILT = ROOT / ".cache/clients/rust/target/debug/program"
PAGE = section("api", "Other languages")


@pytest.fixture
async def address(services: Services) -> AsyncIterator[str]:
    async with services.of_kind("open") as service:
        yield service.direct


@pytest.mark.skipif(which("cargo") is None, reason="Rust is not installed")
def test_the_program_prints_what_the_page_says(address: str) -> None:
    assert BUILT.exists(), "make test-clients builds it"
    output = PAGE.partition("`cargo run` prints\n")[2].partition("\n- ")[0]
    wanted = re.findall(r"^    (.*)$", output, re.MULTILINE)
    assert len(wanted) == 4
    assert printed([str(BUILT)], address) == wanted


def test_the_page_shows_the_program_that_is_built() -> None:
    shown = re.findall(r"```rust\n(.*?)```\n", PAGE, re.DOTALL)
    assert shown == [(PROGRAM / name).read_text() for name in ("build.rs", "src/main.rs")]
