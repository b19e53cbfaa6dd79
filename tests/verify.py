"""`make verify`: everything that can be checked without running the service's tests.

Each check prints its name and, when it fails, what is wrong; the exit code is the
number of failed checks. `make fix` repairs what a machine can repair.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests import ROOT, blocking, locks, openapi, proto, words
from tests.release import versions

BIN = Path(sys.executable).parent


def run(*command: str) -> str:
    """Runs a tool; its output when it found something, else nothing."""
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip() or "failed"


def tracked(*patterns: str) -> list[Path]:
    """Returns the files that git tracks, or would."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def check_generated() -> str:
    """The committed code of the proto is what the proto generates."""
    with tempfile.TemporaryDirectory() as name:
        target = Path(name)
        proto.generate(target)
        fresh = {p.relative_to(target): p.read_text() for p in target.rglob("*_pb2*")}
    # Not what Python compiled of it.
    sources = (p for p in proto.PROTO.rglob("*_pb2*") if p.suffix in (".py", ".pyi"))
    kept = {p.relative_to(proto.PROTO): p.read_text() for p in sources}
    differing = sorted(str(p) for p in {*fresh, *kept} if fresh.get(p) != kept.get(p))
    differing += proto.stale_go()
    return f"run `make proto`; differs: {', '.join(differing)}" if differing else ""


def check_openapi() -> str:
    """The OpenAPI document is what the proto generates."""
    return "run `make proto`; differs: openapi.json" if openapi.stale() else ""


def check_blocking() -> str:
    """The client's blocking face is what the awaited one makes."""
    stale = blocking.stale()
    return f"run `make sync`; differs: {', '.join(stale)}" if stale else ""


def check_breaking() -> str:
    """The proto keeps its clients working."""
    return "buf breaking found a break; it is above" if proto.breaking() else ""


def check_locks() -> str:
    """The locks hold hashes, no download addresses, and what pyproject.toml asks for."""
    for lock in (ROOT / "requirements").glob("*.lock"):
        text = lock.read_text()
        if re.search(r"https?://|--index-url|--find-links", text):
            return f"{lock.name} holds an address"
        pinned = len(re.findall(r"^[a-z0-9][^\n]*==", text, re.MULTILINE))
        hashed = len(re.findall(r"==[^\n]*\\\n    --hash=sha256:", text))
        if not pinned or pinned != hashed:
            return f"{lock.name}: {pinned} pins, {hashed} with hashes"
    return "\n".join(locks.strayed(ROOT))


def check_packages() -> str:
    """The packages have one version and one licence."""
    differing = [
        f"{one} is not LICENSE"
        for one in ("proto/LICENSE", "clients/python/LICENSE")
        if (ROOT / one).read_bytes() != (ROOT / "LICENSE").read_bytes()
    ]
    return "\n".join([*versions.strayed(ROOT), *differing])


def check_broad_excepts() -> str:
    """A broad except raises again, or a comment below it says why it does not."""
    found = []
    for path in tracked("service/*.py", "storage/*.py", "migrations/*.py", "clients/*.py"):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines, start=1):
            broad = re.search(r"except (Base)?Exception\b|except:", line)
            near = lines[number : number + 5]
            if broad and not any("#" in one or one.strip() == "raise" for one in near):
                found.append(f"{path.relative_to(ROOT)}:{number}")
    return f"a broad except without its reason: {', '.join(found)}" if found else ""


def check_machine_paths() -> str:
    """No path of a contributor's machine is in the repository."""
    pattern = re.compile(r"/(?:work|farm|root|home/\w+)/(?!\.\.\.)\w")
    found = []
    for path in tracked():
        if path.suffix in {".lock", ".binpb"} or path == Path(__file__).resolve():
            continue
        if pattern.search(path.read_text(errors="replace")):
            found.append(str(path.relative_to(ROOT)))
    return f"paths of a machine in {', '.join(found)}" if found else ""


def check_migrations() -> str:
    """Each migration has a number of its own, and follows the one before."""
    numbers = [path.name[:4] for path in sorted((ROOT / "migrations/versions").glob("[0-9]*.py"))]
    follows = [
        found[1]
        for path in sorted((ROOT / "migrations/versions").glob("[0-9]*.py"))
        if (found := re.search(r'^down_revision = "(\w+)"', path.read_text(), re.MULTILINE))
    ]
    if numbers[:-1] == follows:
        return ""
    return f"migrations {', '.join(numbers)} follow {', '.join(follows)}: give each its own number"


CHECKS: dict[str, Callable[[], str]] = {
    "format": lambda: run("ruff", "format", "--check", "--quiet", "."),
    "lint": lambda: run("ruff", "check", "--quiet", "--output-format=concise", "."),
    "types": lambda: run("mypy", "--no-error-summary"),
    "layers": lambda: run("lint-imports", "--no-cache"),
    "proto style": lambda: "buf lint found faults; they are above" if proto.lint() else "",
    "proto compatibility": check_breaking,
    "generated code": check_generated,
    "OpenAPI": check_openapi,
    "blocking client": check_blocking,
    "locks": check_locks,
    "packages": check_packages,
    "migrations": check_migrations,
    "broad excepts": check_broad_excepts,
    "machine paths": check_machine_paths,
    "English": words.check_english,
    "class names": words.check_same_names,
}


def main() -> None:
    """Runs every check."""
    failed = 0
    for name, check in CHECKS.items():
        found = check()
        print(f"{'FAIL' if found else 'ok  '}  {name}", flush=True)
        if found:
            failed += 1
            print(found, flush=True)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
