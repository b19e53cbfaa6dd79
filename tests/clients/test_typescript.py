"""The TypeScript client's own tests, of what the conformance suite does not reach."""

import asyncio
import os
import re
import shutil

import pytest

from tests import ROOT
from tests.clients.conftest import Services

FOLDER = ROOT / "clients/typescript"


async def run(*arguments: str, address: str) -> tuple[int | None, str]:
    """Runs Node.js in the client's folder; returns how it ended, and what it printed."""
    if (node := shutil.which("node")) is None or shutil.which("npm") is None:
        pytest.skip("node is not installed")
    process = await asyncio.create_subprocess_exec(
        node,
        *arguments,
        cwd=FOLDER,
        env={**os.environ, "PALIMPSEST_ADDRESS": address},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode()
    return process.returncode, output


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        ("clients/typescript/README.md", ["allergic to peanuts"]),
        ("docs/guides/clients.md", ["allergic to peanuts", "SESSION_NOT_FOUND"]),
    ],
)
async def test_the_program_of_a_page_prints(
    services: Services, page: str, wanted: list[str]
) -> None:
    program = (ROOT / page).read_text().partition("```ts\n")[2].partition("```")[0]
    async with services.of_kind("open") as service:
        code, output = await run("--input-type=module", "--eval", program, address=service.direct)
    assert code == 0, output
    assert [one for one in wanted if one not in output] == []


async def test_its_own_tests_pass(services: Services) -> None:
    files = sorted(str(path) for path in (FOLDER / "dist/test").glob("*.test.js"))
    async with services.of_kind("open") as service:
        code, output = await run("--test", "--test-reporter=tap", *files, address=service.direct)
    assert code == 0, output
    (passed,) = re.findall(r"^# pass (\d+)$", output, re.MULTILINE)
    assert int(passed) >= 20, output
