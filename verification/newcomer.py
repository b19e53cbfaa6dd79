"""Times the way of a newcomer, for each surface, to the first fact remembered and recalled.

`python -m verification.newcomer [--only NAME …] [--warm]` clones this repository into an empty
folder, sets the service up and starts it, and goes each surface's way in a folder of its own
beside the clone. All commands and programs are those of the pages, word for word but for addresses
of ports that are free: a page that is wrong fails. Seconds until all is downloaded and built are
counted apart from those after. Caches of packages are empty, unless `--warm` uses this machine's;
Maven, npm, pip and Go share nothing between surfaces but what they keep there. Writes the rows
into docs/reference/surfaces.md, below those of tests/surfaces.py.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from palimpsest.sync import connect
from service.local.processes import free_port
from tests import ROOT
from tests.surfaces import NEWCOMER, PAGE

#: What was recalled has it, whatever the words of a page's fact are.
RECALLED = re.compile(r"\bnuts\b|peanuts")
#: A command ends before, and a server is ready.
SECONDS = 1_500.0
#: Lines that no one writes for their meaning.
TRIVIAL = re.compile(r"^\s*(//.*|#.*|\*.*|[{}()\[\];,]*)$")
COLUMNS = ("lines", "commands", "downloads and builds, s", "after that, s", "measured")
SERVICE = "the service itself"


@dataclass(frozen=True, kw_only=True, slots=True)
class Surface:
    """A way to use the service, as a page says it. Commands are named by how they begin."""

    #: The page of its commands and files.
    page: str
    #: Commands in the clone that download and build.
    in_clone: tuple[str, ...] = ()
    #: The same in the user's folder, after the files are there.
    build: tuple[str, ...] = ()
    #: The user's files by name, each the first program of the page in a language.
    files: Mapping[str, str] = field(default_factory=dict)
    #: Commands that remember and recall, in the user's folder.
    run: tuple[str, ...] = ()
    #: The user's folder is the clone.
    at_clone: bool = False
    #: What the user types into programs that the host plays; the page has it.
    typed: tuple[str, ...] = ()
    #: The program of `verification.newcomer_hosts` that starts what the user has set up.
    host: str = ""


SURFACES = {
    "Python": Surface(
        page="clients/python/README.md",
        build=("python3 -m venv", ".venv/bin/pip install"),
        files={"program.py": "python"},
        run=(".venv/bin/python program.py",),
    ),
    "command line": Surface(
        page="README.md",
        run=(".venv/bin/palimpsest remember", ".venv/bin/palimpsest recall"),
        at_clone=True,
    ),
    "HTTP (curl)": Surface(
        page="README.md",
        run=(
            """curl -d '{"session": {""",
            """curl -d '{"session": "bob", "chunks""",
            """curl -d '{"session": "bob", "query""",
        ),
        at_clone=True,
    ),
    "Go": Surface(
        page="clients/go/README.md",
        build=("go mod init", "go mod edit", "go mod tidy", "go build"),
        files={"main.go": "go"},
        run=("./example",),
    ),
    "TypeScript": Surface(
        page="clients/typescript/README.md",
        in_clone=("make .cache",),
        build=("npm install",),
        files={"program.mjs": "ts"},
        run=("node program.mjs",),
    ),
    "Java": Surface(
        page="clients/java/README.md",
        in_clone=("mvn -f clients/java",),
        build=("mvn -q dependency",),
        files={"pom.xml": "xml", "Main.java": "java"},
        run=("java -cp",),
    ),
    "MCP": Surface(page="docs/guides/mcp.md", files={"mcp.json": "json"}, host="mcp"),
    "hook": Surface(
        page="docs/guides/hooks.md",
        typed=(
            "claude plugin marketplace add ./clients/agents",
            "claude plugin install palimpsest@palimpsest",
        ),
        host="hook",
    ),
    "proxy": Surface(
        page="docs/guides/proxy.md",
        files={"program.py": "python"},
        typed=("palimpsest proxy",),
        host="proxy",
    ),
    "LangGraph": Surface(
        page="docs/guides/frameworks.md",
        build=("python3 -m venv", ".venv/bin/pip install"),
        files={"program.py": "python"},
        run=(".venv/bin/python program.py",),
    ),
}


def command(page: str, beginning: str) -> str:
    """Returns the first command of a page that begins so. Raises LookupError."""
    lines = iter((ROOT / page).read_text().splitlines())
    for line in lines:
        if line.startswith(f"    {beginning}"):
            whole = line.strip()
            while whole.endswith("\\"):
                whole = f"{whole[:-1]} {next(lines).strip()}"
            return whole
    raise LookupError(f"{page} has no command {beginning!r}")


def program(page: str, language: str) -> str:
    """Returns the first program of a page in a language. Raises LookupError."""
    text = (ROOT / page).read_text().partition(f"```{language}\n")[2].partition("```")[0]
    if not text:
        raise LookupError(f"{page} has no program in {language}")
    return text


def commands(surface: Surface) -> list[str]:
    """Returns the commands of a surface, in their order. Raises LookupError."""
    text = (ROOT / surface.page).read_text()
    if missing := [one for one in surface.typed if one not in text]:
        raise LookupError(f"{surface.page} does not have {missing}")
    named = (*surface.in_clone, *surface.build, *surface.run)
    return [*(command(surface.page, beginning) for beginning in named), *surface.typed]


def lines_of(surface: Surface) -> int:
    """Counts the lines that a user writes, besides commands."""
    texts = (program(surface.page, language) for language in surface.files.values())
    return sum(not TRIVIAL.match(line) for text in texts for line in text.splitlines())


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """An empty folder with a clone of the repository, and the environment of its user."""

    folder: Path
    environment: Mapping[str, str]
    #: What pages say, and what is free here.
    addresses: Mapping[str, str]

    @property
    def clone(self) -> Path:
        """The repository, under the name that pages give it."""
        return self.folder / "palimpsest"

    def here(self, text: str) -> str:
        """Returns a text of a page with the addresses of this place."""
        for said, free in self.addresses.items():
            text = text.replace(said, free)
        return text

    def shell(self, line: str, folder: Path) -> str:
        """Runs a command. Raises RuntimeError with what it printed."""
        done = subprocess.run(
            ["bash", "-c", self.here(line)],
            cwd=folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        if done.returncode:
            raise RuntimeError(f"{line}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
        return done.stdout

    def forget(self) -> None:
        """Deletes all sessions, so that no surface recalls what another one has remembered."""
        with connect(self.environment["PALIMPSEST_ADDRESS"]) as client:
            for session in list(client.sessions()):
                client.delete_session(session.id)

    @contextmanager
    def service(self) -> Iterator[float]:
        """Runs the service of the clone; yields the seconds until it is ready."""
        started = time.monotonic()
        with subprocess.Popen(
            shlex.split(command("README.md", ".venv/bin/palimpsest up"), comments=True),
            cwd=self.clone,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                said = []
                for line in process.stdout:
                    said.append(line)
                    if "Ctrl-C stops it" in line:
                        break
                else:
                    raise RuntimeError("".join(said))
                yield time.monotonic() - started
            finally:
                # Ctrl-C is ignored where a shell in the background started this.
                process.terminate()


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What was counted and measured of a surface."""

    lines: int
    commands: int
    #: Until all is downloaded and built, and from there to the recalled fact, in seconds.
    built: float
    after: float

    def cells(self) -> str:
        """Returns the cells of its row in the table."""
        day = datetime.now(UTC).date()
        return f"{self.lines} | {self.commands} | {self.built:.1f} | {self.after:.1f} | {day}"


def timed(name: str, place: Place) -> Row:
    """Goes a surface's way. Raises RuntimeError where it does not end with the fact."""
    surface = SURFACES[name]
    folder = place.clone if surface.at_clone else place.folder / re.sub(r"\W+", "-", name)
    folder.mkdir(exist_ok=True)
    for file, language in surface.files.items():
        (folder / file).write_text(place.here(program(surface.page, language)))
    begun = time.monotonic()
    for beginning in surface.in_clone:
        place.shell(command(surface.page, beginning), place.clone)
    for beginning in surface.build:
        place.shell(command(surface.page, beginning), folder)
    built = time.monotonic()
    run = [command(surface.page, beginning) for beginning in surface.run]
    if surface.host:
        python = place.clone / ".venv/bin/python"
        run = [f"PYTHONPATH={place.clone} {python} -m verification.newcomer_hosts {surface.host}"]
    shown = ""
    for line in run:
        shown = place.shell(line, folder)
    ended = time.monotonic()
    if not RECALLED.search(shown):
        raise RuntimeError(f"the fact was not recalled: {shown[-500:]!r}")
    return Row(
        lines=lines_of(surface),
        commands=len(commands(surface)),
        built=built - begun,
        after=ended - built,
    )


def environment(folder: Path, addresses: Mapping[str, str], *, warm: bool) -> dict[str, str]:
    """Returns the environment of a user; without `warm`, caches of packages are in the folder."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("PALIMPSEST_")}
    own.pop("VIRTUAL_ENV", None)
    address, http, _ = addresses.values()
    path = os.pathsep.join(
        [str(folder / "palimpsest/.venv/bin"), os.environ["PATH"], "/usr/local/go/bin"]
    )
    own |= {
        "PATH": path,
        "PALIMPSEST_DATA_DIR": str(folder / "data"),
        "PALIMPSEST_LISTEN": address,
        "PALIMPSEST_HTTP_LISTEN": http,
        "PALIMPSEST_ADDRESS": address,
        "PALIMPSEST_HTTP_URL": f"http://{http}",
        "PALIMPSEST_HOOK_QUEUE": str(folder / "queue"),
        # A busy machine does not recall in 0.18 seconds.
        "PALIMPSEST_HOOK_SECONDS": "30",
    }
    if not warm:
        caches = folder / "caches"
        own |= {
            "PIP_CACHE_DIR": str(caches / "pip"),
            "UV_CACHE_DIR": str(caches / "uv"),
            "npm_config_cache": str(caches / "npm"),
            "GOMODCACHE": str(caches / "go"),
            "GOCACHE": str(caches / "go-build"),
            "GOFLAGS": "-modcacherw",
            "MAVEN_OPTS": f"-Dmaven.repo.local={caches / 'maven'}",
        }
    return own


def conditions(*, warm: bool) -> str:
    """Returns how the figures of a run were measured."""
    load = os.getloadavg()[0]
    caches = "as this machine had them" if warm else "empty"
    return (
        f"The last run: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores with a load"
        f" of {load:.1f} before it, Python {sys.version.split()[0]}, caches of packages {caches}."
    )


def write(rows: Mapping[str, Row], said: str) -> None:
    """Writes rows and the conditions of the run into the page; other rows stay."""
    before, marker, after = PAGE.read_text().partition(NEWCOMER)
    cells = dict(re.findall(r"^\| ([^|]+?) \| (.+) \|$", after, re.MULTILINE))
    cells |= {name: row.cells() for name, row in rows.items()}
    lines = [f"| | {' | '.join(COLUMNS)} |", "| --- | --: | --: | --: | --: | --- |"]
    lines += [f"| {name} | {cells[name]} |" for name in (SERVICE, *SURFACES) if name in cells]
    PAGE.write_text("\n".join([before + marker, *lines, "", said, ""]))


def main() -> None:
    """Measures the surfaces, and writes the table."""
    parser = argparse.ArgumentParser(prog="python -m verification.newcomer", description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(SURFACES), choices=list(SURFACES))
    parser.add_argument("--warm", action="store_true", help="use this machine's package caches")
    given = parser.parse_args()
    said, rows, failed = conditions(warm=given.warm), dict[str, Row](), False
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # PostgreSQL does not run as root.
        folder.chmod(0o755)
        said_ports = ("127.0.0.1:50051", "127.0.0.1:50080", "127.0.0.1:50090")
        addresses = {port: f"127.0.0.1:{free_port()}" for port in said_ports}
        own = environment(folder, addresses, warm=given.warm)
        place = Place(folder=folder, environment=own, addresses=addresses)
        begun = time.monotonic()
        place.shell(f"git clone -q file://{ROOT} palimpsest", folder)
        place.shell(command("README.md", "make setup"), place.clone)
        built = time.monotonic() - begun
        ready = stack.enter_context(place.service())
        rows[SERVICE] = Row(lines=0, commands=3, built=built, after=ready)
        print(SERVICE, rows[SERVICE].cells(), flush=True)
        for name in given.only:
            try:
                rows[name] = timed(name, place)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                failed = True
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                continue
            finally:
                place.forget()
            print(name, rows[name].cells(), flush=True)
        # Before all is removed, which takes minutes.
        write(rows, said)
    sys.exit(failed)


if __name__ == "__main__":
    main()
