"""Drivers: a program for each client, which makes the calls that it is sent."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from tests import ROOT

#: Bytes of a reply.
LINE_BYTES = 16 << 20
#: How long a reply may take: it ends what hangs.
REPLY_SECONDS = 60.0
#: Where packages put their programs, besides PATH.
PROGRAM_FOLDERS = ("/usr/local/go/bin",)


@dataclass(frozen=True, kw_only=True)
class Client:
    """A client of the suite."""

    name: str
    #: How it is called in the table.
    title: str
    #: What starts its driver, in the repository.
    command: tuple[str, ...]
    #: Programs without which it is left out.
    needs: tuple[str, ...] = ()
    #: What `make test-clients` builds; without it the test fails.
    built: str = ""

    def missing(self) -> str:
        """Returns the program that it needs and this machine has not; empty: none."""
        folders = os.pathsep.join([os.environ["PATH"], *PROGRAM_FOLDERS])
        return next((one for one in self.needs if shutil.which(one, path=folders) is None), "")


#: A client's entry is all that the runner knows of it.
CLIENTS = (
    Client(
        name="python",
        title="Python",
        command=(sys.executable, "clients/python/conformance/driver.py"),
    ),
    Client(
        name="go",
        title="Go",
        command=(".cache/clients/go-driver",),
        needs=("go",),
        built=".cache/clients/go-driver",
    ),
    Client(
        name="java",
        title="Java",
        # A driver runs for seconds only: what pays off later, its compiler leaves out.
        command=(
            *("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"),
            "clients/java/proto/target/classes:clients/java/sdk/target/classes"
            ":clients/java/sdk/target/test-classes:clients/java/sdk/target/lib/*",
            "dev.palimpsest.conformance.Driver",
        ),
        needs=("java", "mvn"),
        built="clients/java/sdk/target/lib",
    ),
    Client(
        name="typescript",
        title="TypeScript",
        command=("node", "clients/typescript/dist/conformance/driver.js"),
        needs=("node", "npm"),
        built="clients/typescript/dist/conformance/driver.js",
    ),
    Client(
        name="browser",
        title="TypeScript in browsers",
        command=("node", "clients/typescript/dist/conformance/driver.js", "browser"),
        needs=("node", "npm"),
        built="clients/typescript/dist/conformance/driver.js",
    ),
)


class Failed(AssertionError):
    """A driver did not do what every driver does."""


class Driver:
    """A running driver."""

    def __init__(self, process: asyncio.subprocess.Process, errors: IO[bytes]) -> None:
        self._process = process
        self._errors = errors
        self._waiting: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._number = 0
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def started(cls, client: Client, environment: Mapping[str, str]) -> "Driver":
        """Starts the driver of a client, with nothing of this program's own settings."""
        kept = {name: text for name, text in os.environ.items() if "PALIMPSEST" not in name}
        errors = TemporaryFile()  # noqa: SIM115 - closed in close()
        process = await asyncio.create_subprocess_exec(
            *client.command,
            cwd=ROOT,
            env={**kept, **environment},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            limit=LINE_BYTES,
        )
        return cls(process, errors)

    def send(self, call: str, args: Mapping[str, Any]) -> "asyncio.Future[Mapping[str, Any]]":
        """Sends a command; returns its reply, when that is there."""
        self._number += 1
        reply = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = reply
        line = json.dumps({"id": self._number, "call": call, "args": args})
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(line.encode() + b"\n")
        return reply

    async def call(self, call: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Sends a command; returns its reply. Raises Failed."""
        return await self.reply_of(call, self.send(call, args))

    async def reply_of(
        self, call: str, reply: "asyncio.Future[Mapping[str, Any]]"
    ) -> Mapping[str, Any]:
        """Waits for a reply. Raises Failed."""
        try:
            return await asyncio.wait_for(reply, REPLY_SECONDS)
        except TimeoutError:
            raise Failed(f"no reply to {call} within {REPLY_SECONDS:g} s{self.said()}") from None

    def said(self) -> str:
        """Returns what the driver wrote to standard error."""
        with suppress(ValueError):
            self._errors.seek(0)
            text = self._errors.read().decode(errors="replace").strip()
            return f"; the driver says:\n{text}" if text else ""
        return ""

    async def kill(self) -> None:
        """SIGKILL."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self.close()

    async def close(self) -> None:
        """Ends its input, and waits until it has ended."""
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), REPLY_SECONDS)
        except TimeoutError:
            self._process.kill()
            raise Failed("the driver did not end with its input") from None
        finally:
            await self._reading
            self._errors.close()

    async def _read(self) -> None:
        assert self._process.stdout is not None, "it is a pipe"
        async for line in self._process.stdout:
            try:
                reply = json.loads(line)
                waiting = self._waiting.pop(reply["id"])
            except (ValueError, KeyError, TypeError):
                self._end(f"no reply to a command: {line[:300]!r}")
                continue
            if not waiting.done():
                waiting.set_result(reply)
        self._end("the driver has ended")

    def _end(self, cause: str) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Failed(f"{cause}{self.said()}"))
                # It may be that no step waits for it.
                waiting.exception()
        self._waiting.clear()


def in_repository(path: str) -> Path:
    """Returns a path of the repository."""
    return ROOT / path
