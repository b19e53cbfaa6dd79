"""docs/guides/api.md, "Other languages": its programs, built as it says, print what it says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.acceptance.guides.pages import printed
from tests.support.guides import section
from tests.support.harness import absent

pytestmark = pytest.mark.prove

PAGE = section("api", "Other languages")
TYPESCRIPT = ROOT / "tests/typescript"
GO = ROOT / "tests/go"
GO_PLUGINS = ROOT / ".cache/go"
#: Where Go's own packages put it, which is not always in PATH.
GO_BIN = "/usr/local/go/bin"


def generate(target: Path, plugins: Path, *options: str) -> None:
    """Runs `buf generate` in the repository, with these plugins, into `target`."""
    subprocess.run(
        [Path(sys.executable).parent / "buf", "generate", *options, "-o", target],
        cwd=ROOT,
        env={**os.environ, "PATH": os.pathsep.join([str(plugins), os.environ["PATH"]])},
        check=True,
        timeout=200,
    )


def program(language: str) -> tuple[str, list[str]]:
    """Returns the page's program in a language, and the four lines that it prints."""
    text, _, rest = PAGE.partition(f"```{language}\n")[2].partition("```\n")
    output = re.split(r"^(?:it )?prints?$", rest, maxsplit=1, flags=re.MULTILINE)[1]
    return text, re.findall(r"^    (.*)$", output, re.MULTILINE)[:4]


def test_the_typescript_program_prints_what_it_says(address: str, tmp_path: Path) -> None:
    node, packages = shutil.which("node"), TYPESCRIPT / "node_modules"
    if node is None or not packages.is_dir():
        absent("node, or what tests/typescript asks for,")
    generate(tmp_path, packages / ".bin")
    text, wanted = program("js")
    (tmp_path / "node_modules").symlink_to(packages)
    (tmp_path / "program.mjs").write_text(text)
    assert printed([node, str(tmp_path / "program.mjs")], address) == wanted


def test_the_go_program_prints_what_it_says(address: str, tmp_path: Path) -> None:
    go = shutil.which("go", path=os.pathsep.join([os.environ["PATH"], GO_BIN]))
    if go is None or not (GO_PLUGINS / "protoc-gen-go").exists():
        absent("Go, or what tests/go asks for,")
    generate(tmp_path, GO_PLUGINS, "--template", "buf.gen.go.yaml")
    text, wanted = program("go")
    (tmp_path / "main.go").write_text(text)
    for name in ("go.mod", "go.sum"):
        shutil.copy(GO / name, tmp_path)
    # What `make setup-ci` fetched must be enough.
    offline = {**os.environ, "GOPROXY": "off", "GOFLAGS": "-mod=readonly"}
    subprocess.run(
        [go, "build", "-o", "program", "."], cwd=tmp_path, env=offline, check=True, timeout=400
    )
    assert printed([str(tmp_path / "program")], address) == wanted


def test_the_page_asks_for_what_is_installed_for_it() -> None:
    asked = (TYPESCRIPT / "package.json").read_text()
    named = set(re.findall(r"@[a-z]+/[a-z-]+", PAGE.partition("```js")[0]))
    # buf itself is among the tools that `make setup` installs.
    assert {one for one in named if f'"{one}"' not in asked} == {
        "@bufbuild/buf",
        "@grpc/proto-loader",
    }
    modules = (GO / "go.mod").read_text()
    installed = set(re.findall(r"go install (\S+)@latest", PAGE))
    assert {one for one in installed if one not in modules} == {"github.com/bufbuild/buf/cmd/buf"}
