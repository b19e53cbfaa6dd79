"""Builds the image, and runs its programs as a container engine would, without one."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.support.harness import READY_SECONDS, STOP_SECONDS, eventually

BUILD = ROOT / "deploy" / "image" / "build.py"
USER = 65532
#: How long a program that ends by itself may take: this only ends what hangs.
RUN_SECONDS = 300.0
#: Where the image's programs may write.
WRITABLE = ("/tmp", "/run/palimpsest")
#: In a mount namespace of its own: the image's root, read-only, and what an engine puts there.
_ENTER = """
set -eu
root=$1 run=$2; shift 2
mount --bind "$root" "$root"
mount --bind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --bind "$run" "$root/run/palimpsest"
mount -o remount,ro,bind "$root"
exec chroot --userspec=65532:65532 --groups=65532 "$root" "$@"
"""


@dataclass(frozen=True)
class Building:
    """A build that is under way, in a storage of its own."""

    storage: Path
    tag: str
    process: subprocess.Popen[str]

    @classmethod
    def started(cls, folder: Path, tag: str, revision: str) -> "Building":
        """Begins to build this tree, as that commit."""
        for program in ("buildah", "mmdebstrap", "unshare"):
            if shutil.which(program) is None:
                pytest.fail(f"{program} is not installed; `make setup-deploy` does it on Debian")
        if os.geteuid() != 0:
            pytest.fail("to build and run an image without a container engine takes root")
        process = subprocess.Popen(
            [sys.executable, str(BUILD), "--engine=buildah", f"--storage={folder}", f"--tag={tag}"],
            env={**os.environ, "REVISION": revision},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return cls(folder, tag, process)

    def digest(self) -> str:
        """Waits for it; the image's digest."""
        said, _ = self.process.communicate()
        assert self.process.returncode == 0, said[-3000:]
        name, digest = said.strip().splitlines()[-1].split()
        assert name == self.tag
        return digest

    def buildah(self, *arguments: str) -> str:
        """Runs one command of buildah in this storage."""
        done = subprocess.run(
            [
                *("buildah", "--storage-driver", "vfs"),
                *("--root", f"{self.storage}/root", "--runroot", f"{self.storage}/run"),
                *arguments,
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def remove(self) -> None:
        """Ends it, if need be, and removes all that is in its storage."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        if (self.storage / "root").exists():
            self.buildah("rm", "--all")
            self.buildah("rmi", "--all", "--force")


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image, unpacked."""

    #: Its files.
    root: Path
    digest: str
    #: What it says of itself: `config` of the image's specification.
    config: dict[str, Any]
    #: All that `buildah inspect` shows, the history included.
    inspected: str

    @classmethod
    def of(cls, building: Building) -> "Image":
        """Waits for a build and unpacks what it made."""
        digest = building.digest()
        container = building.buildah("from", "--pull-never", f"localhost/{building.tag}")
        inspected = building.buildah("inspect", "--type", "image", f"localhost/{building.tag}")
        return cls(
            root=Path(building.buildah("mount", container)),
            digest=digest,
            config=json.loads(inspected)["Docker"]["config"],
            inspected=inspected,
        )

    def command(
        self, run_dir: Path, arguments: tuple[str, ...], variables: Mapping[str, str]
    ) -> list[str]:
        """Returns what runs a program of it: with its variables, as its user, read-only."""
        environment = [
            *self.config["Env"],
            *(f"{name}={value}" for name, value in variables.items()),
        ]
        enter = ("unshare", "--mount", "sh", "-c", _ENTER, "enter", str(self.root), str(run_dir))
        return [*enter, "env", "-i", *environment, *arguments]

    def run(
        self, run_dir: Path, *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program of it to its end."""
        return subprocess.run(
            self.command(run_dir, arguments, variables),
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )

    def palimpsest(
        self, run_dir: Path, *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs its entry point with these arguments."""
        return self.run(run_dir, *self.config["Entrypoint"], *arguments, **variables)

    @contextmanager
    def started(
        self, run_dir: Path, ready: str, *arguments: str, **variables: str
    ) -> Iterator["Running"]:
        """Starts its entry point, and waits until it says that it is ready."""
        log = run_dir.parent / f"{arguments[0]}.log"
        command = self.command(run_dir, (*self.config["Entrypoint"], *arguments), variables)
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            running = Running(process, log)
            eventually(f"{arguments[0]} is ready", lambda: running.line(ready), READY_SECONDS)
            yield running
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


@dataclass(frozen=True)
class Running:
    """A program of the image that runs."""

    process: subprocess.Popen[bytes]
    log: Path

    def line(self, beginning: str) -> str:
        """Returns the line that begins so; empty as long as there is none."""
        lines = self.log.read_text(errors="replace").splitlines()
        assert self.process.poll() is None, "\n".join(lines)
        return next((line for line in lines if line.startswith(beginning)), "")

    def stop(self) -> int:
        """SIGTERM, which is the image's stop signal; the exit code."""
        self.process.terminate()
        return self.process.wait(STOP_SECONDS)
