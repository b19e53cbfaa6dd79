#!/usr/bin/env python3
"""Builds the image of this commit: `make image`, or by itself with --help.

With docker or podman a plain `docker build -f deploy/image/Containerfile .` does too; this adds
the version, the commit and its time, and hands on how this machine reaches its package registry.
Where there is no container engine it takes Debian's buildah, which needs none, and without --base
makes the base image of Debian's packages by mmdebstrap. Standard library only.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CONTAINERFILE = ROOT / "deploy" / "image" / "Containerfile"
CACHE = ROOT / ".cache" / "image"
SUITE = "bookworm"
#: What a base needs besides what Debian calls essential.
PACKAGES = "python3,python3-venv,libstdc++6,ca-certificates"
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")
#: Variables of pip that say where packages come from, and how they are reached.
REGISTRY = ("INDEX_URL", "EXTRA_INDEX_URL", "TRUSTED_HOST", "PROXY", "DEFAULT_TIMEOUT", "RETRIES")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


class BuildError(Exception):
    """Says in one line what to do."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The program that builds, with the options that come before each of its commands."""

    #: buildah, docker or podman.
    name: str
    #: The program and its options.
    command: tuple[str, ...]

    def run(self, *arguments: str) -> str:
        """Runs one command of it and returns what it printed."""
        return _run([*self.command, *arguments])


def main() -> None:
    """Builds, and prints the image's name and digest."""
    options = _options()
    try:
        engine = _engine(options.engine, options.storage)
        base = options.base
        if not base and engine.name == "buildah":
            base = debian_base(engine, options.suite, fresh=options.fresh_base)
        build(engine, base=base, tag=options.tag or f"palimpsest:{version()}")
    except BuildError as error:
        sys.exit(f"deploy/image/build.py: {error}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Builds the image of this commit.", allow_abbrev=False
    )
    parser.add_argument(
        "--base",
        default="",
        help="the base image: a Debian with Python 3.11 or later, venv, libstdc++6 and"
        " ca-certificates; best by"
        " its digest. Without it docker and podman take the Containerfile's own; buildah makes one"
        " by mmdebstrap",
    )
    parser.add_argument("--tag", default="", help="the image's name; palimpsest:VERSION without it")
    parser.add_argument(
        "--engine",
        choices=("buildah", "docker", "podman"),
        help="what builds; without it the first of these that is installed",
    )
    parser.add_argument(
        "--suite", default=SUITE, help=f"Debian's, for the base made here ({SUITE})"
    )
    parser.add_argument(
        "--fresh-base",
        action="store_true",
        help="make that base anew, with Debian's updates of today; else the one in .cache/image is"
        " taken",
    )
    parser.add_argument(
        "--storage",
        type=Path,
        help="a folder where buildah keeps its images; without it where it always does",
    )
    options = parser.parse_args()
    if not re.fullmatch("[a-z]+", options.suite):
        parser.error(f"--suite: {options.suite!r} is no name of a Debian such as {SUITE}")
    return options


def _engine(wanted: str | None, storage: Path | None) -> Engine:
    names = [wanted] if wanted else ["buildah", "docker", "podman"]
    for name in names:
        program = shutil.which(name)
        if program is None:
            continue
        if name != "buildah":
            return Engine(name=name, command=(program,))
        where = ("--root", f"{storage}/root", "--runroot", f"{storage}/run") if storage else ()
        return Engine(name=name, command=(program, "--storage-driver", "vfs", *where))
    raise BuildError(
        f"{' or '.join(names)} is not installed; on Debian `make setup-deploy` installs buildah"
    )


def version() -> str:
    """Returns the version of the server that is built."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def revision() -> str:
    """Returns the commit that is built, as it is named or found; -dirty where the tree differs."""
    if named := os.environ.get("REVISION"):
        return named
    head = _git("rev-parse", "HEAD")
    if not head:
        raise BuildError("this is no git checkout: set REVISION to the commit that is built")
    return head + ("-dirty" if _git("status", "--porcelain") else "")


def epoch() -> str:
    """Returns the time that all files of the image have: that of the commit."""
    time = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct")
    if not time.isdecimal():
        raise BuildError("set SOURCE_DATE_EPOCH to the commit's time in seconds")
    return time


def debian_base(engine: Engine, suite: str, *, fresh: bool = False) -> str:
    """Returns the name of a base image made of Debian's packages; makes it where it is missing."""
    archive = CACHE / f"base-{suite}.tar"
    if fresh or not archive.exists():
        _bootstrap(suite, archive)
    with archive.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    name = f"localhost/palimpsest-base:{suite}-{digest[:12]}"
    if not engine.run("images", "--quiet", "--filter", f"reference={name}"):
        container = engine.run("from", "scratch").strip()
        engine.run("add", "--quiet", container, str(archive), "/")
        engine.run("commit", "--quiet", "--rm", "--timestamp", "0", container, name)
    return name


def _bootstrap(suite: str, archive: Path) -> None:
    program = shutil.which("mmdebstrap")
    if program is None:
        raise BuildError(
            "mmdebstrap is not installed, which makes the base image; `make setup-deploy` installs"
            " it on Debian, or name an image with --base"
        )
    archive.parent.mkdir(parents=True, exist_ok=True)
    leave_out = [f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT]
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        made = Path(folder) / archive.name
        print(f"making a base image of Debian {suite}", file=sys.stderr, flush=True)
        _run(
            [
                program,
                "--quiet",
                "--variant=essential",
                f"--include={PACKAGES}",
                *leave_out,
                "--dpkgopt=path-include=/usr/share/doc/*/copyright",
                suite,
                str(made),
            ],
            {"SOURCE_DATE_EPOCH": "0"},
        )
        made.replace(archive)


def build(engine: Engine, *, base: str, tag: str) -> None:
    """Builds the image and prints its name and digest."""
    arguments = {"VERSION": version(), "REVISION": revision(), "SOURCE_DATE_EPOCH": epoch()}
    if base:
        arguments["BASE"] = base
    options = [part for pair in arguments.items() for part in ("--build-arg", "=".join(pair))]
    environment = {"SOURCE_DATE_EPOCH": epoch()}
    if engine.name == "buildah":
        # The docker format, because OCI's has no health checks.
        options += ["--isolation", "chroot", "--format", "docker", "--timestamp", epoch()]
    elif engine.name == "podman":
        options += ["--format", "docker", "--timestamp", epoch()]
    else:
        environment["DOCKER_BUILDKIT"] = "1"
    with secrets() as mounted:
        command = [*engine.command, "build", *options, *mounted]
        command += ["--tag", tag, "--file", str(CONTAINERFILE), str(ROOT)]
        done = subprocess.run(command, env={**os.environ, **environment}, check=False)
    if done.returncode:
        raise BuildError(
            f"{engine.name} failed (status {done.returncode}); its own words are above"
        )
    if engine.name == "buildah":
        _forget_container(engine, tag)
        digest = engine.run("images", "--format", "{{.Digest}}", tag).split()[0]
    else:
        digest = engine.run("image", "inspect", "--format", "{{.Id}}", tag).strip()
    print(f"{tag} {digest}")


def _forget_container(engine: Engine, tag: str) -> None:
    """Takes out of an image the random id and host name of the container it was built in.

    buildah writes them into images of the docker format, so that no two have one digest.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        folder = Path(name)
        engine.run("push", "--quiet", "--disable-compression", tag, f"dir:{folder}")
        manifest = json.loads((folder / "manifest.json").read_text())
        old = folder / manifest["config"]["digest"].removeprefix("sha256:")
        config = json.loads(old.read_text())
        config.pop("container", None)
        for part in ("config", "container_config"):
            config.get(part, {}).pop("Hostname", None)
        new = json.dumps(config, sort_keys=True).encode()
        digest = hashlib.sha256(new).hexdigest()
        (folder / digest).write_bytes(new)
        manifest["config"] |= {"digest": f"sha256:{digest}", "size": len(new)}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        engine.run("rmi", "--force", old.name)
        engine.run("tag", engine.run("pull", "--quiet", f"dir:{folder}").strip(), tag)


@contextmanager
def secrets() -> Iterator[list[str]]:
    """Yields options that hand on, into no layer, how this machine reaches its registry."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "registries"
        path.touch(mode=0o600)
        path.write_text(
            "".join(f"{name}={shlex.quote(value)}\n" for name, value in registry_variables())
        )
        mounted = ["--secret", f"id=registries,src={path}"]
        certificates = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
        if certificates and Path(certificates).is_file():
            mounted += ["--secret", f"id=ca,src={certificates}"]
        yield mounted


def registry_variables() -> Iterator[tuple[str, str]]:
    """Yields what pip's configuration and the environment say about reaching packages."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    # pip may be missing here; then the environment alone counts.
    for line in listed.stdout.splitlines() if listed.returncode == 0 else ():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2].upper().replace("-", "_")
        if name in REGISTRY and not os.environ.get(f"PIP_{name}"):
            yield f"PIP_{name}", shlex.split(value)[0]
    for name in (*(f"PIP_{one}" for one in REGISTRY), *PROXIES, *map(str.lower, PROXIES)):
        if os.environ.get(name):
            yield name, os.environ[name]


def _git(*arguments: str) -> str:
    if shutil.which("git") is None:
        return ""
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no word"]
        raise BuildError(f"{Path(command[0]).name} failed: {last[0]}")
    return done.stdout


if __name__ == "__main__":
    main()
