"""docs/guides/other-languages.md: its program, made as it says, prints what it says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.acceptance.guides.pages import ROOT, printed
from tests.harness import absent

PAGE = (ROOT / "docs/guides/other-languages.md").read_text()
TYPESCRIPT = ROOT / "tests/typescript"


def test_the_program_prints_what_it_says(address: str, tmp_path: Path) -> None:
    node, packages = shutil.which("node"), TYPESCRIPT / "node_modules"
    if node is None or not packages.is_dir():
        absent("node, or what tests/typescript asks for,")
    path = os.pathsep.join([str(packages / ".bin"), os.environ["PATH"]])
    buf = Path(sys.executable).parent / "buf"
    subprocess.run(
        [buf, "generate", "-o", tmp_path],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        check=True,
        timeout=200,
    )
    text, _, rest = PAGE.partition("```js\n")[2].partition("```\n")
    (tmp_path / "node_modules").symlink_to(packages)
    (tmp_path / "program.mjs").write_text(text)
    wanted = re.findall(r"^    (.*)$", rest.partition("\n- ")[0], re.MULTILINE)
    assert len(wanted) == 4
    assert printed([node, str(tmp_path / "program.mjs")], address) == wanted


def test_the_page_asks_for_what_is_installed_for_it() -> None:
    asked = (TYPESCRIPT / "package.json").read_text()
    named = set(re.findall(r"@[a-z]+/[a-z-]+", PAGE.partition("```js")[0]))
    # buf itself is among the tools that `make setup` installs.
    assert {one for one in named if f'"{one}"' not in asked} == {
        "@bufbuild/buf",
        "@grpc/proto-loader",
    }
