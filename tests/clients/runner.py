"""Runs a script of clients/conformance against a service, by the driver of one client."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import jsonschema

import palimpsest
from tests import ROOT
from tests.clients.drivers import REPLY_SECONDS, Client, Driver
from tests.clients.matching import difference, filled
from tests.clients.service import Service

FOLDER = ROOT / "clients/conformance"
SCHEMA = FOLDER / "schema.json"
#: How often the log is read until it has what a step waits for.
POLL_SECONDS = 0.05
#: Chunks of one append.
BATCH_CHUNKS = 256


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script of one feature."""

    feature: str
    name: str
    steps: tuple[Mapping[str, Any], ...]
    service: str = "open"
    environment: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.feature}: {self.name}"


class Unsupported(Exception):
    """A driver says why its client cannot do what a script asks for."""


def files() -> dict[str, dict[str, Any]]:
    """Returns the features, by the names of their files, in the order of the table.

    Raises ValidationError for a file that is none.
    """
    checker = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    found = {}
    for path in sorted(set(FOLDER.glob("*.json")) - {SCHEMA}):
        content = json.loads(path.read_text())
        checker.validate(content)
        found[path.stem] = content
    return found


def scripts() -> list[Script]:
    """Returns all scripts. Raises ValidationError."""
    return [
        Script(
            feature=name,
            name=one["name"],
            steps=tuple(one["steps"]),
            service=one.get("service", "open"),
            environment=one.get("environment", {}),
        )
        for name, content in files().items()
        for one in content["scripts"]
    ]


@dataclass
class Run:
    """A script under way."""

    client: Client
    service: Service
    names: dict[str, Any] = field(default_factory=dict)
    _environment: dict[str, str] = field(default_factory=dict)
    _drivers: dict[str, Driver] = field(default_factory=dict)
    _started: dict[str, tuple[str, Driver, "asyncio.Future[Mapping[str, Any]]"]] = field(
        default_factory=dict
    )

    async def run(self, script: Script) -> None:
        """Runs it. Raises AssertionError that names the step, Unsupported."""
        with TemporaryDirectory() as folder:
            await self._run(script, folder)

    async def _run(self, script: Script, folder: str) -> None:
        unique = uuid4().hex[:12]
        own = {"run": unique, "session": f"s-{unique}", "folder": folder}
        self.names = {**self.service.names, **own}
        self._environment = filled(script.environment, self.names)
        try:
            for number, step in enumerate(script.steps, start=1):
                try:
                    await self._step(filled(step, self.names))
                except (AssertionError, KeyError) as error:
                    what = json.dumps(step)[:300]
                    said = "".join(one.said() for one in self._drivers.values())
                    raise AssertionError(f"step {number}, {what}: {error}{said}") from error
        finally:
            self.service.replies.set()
            await self.service.break_down("heal", "")
            for driver in self._drivers.values():
                await driver.kill()

    async def _step(self, step: Mapping[str, Any]) -> None:
        for kind, do in self._kinds().items():
            if kind in step:
                await do(step)
                return
        raise ValueError(f"no step: {step}")

    def _kinds(self) -> dict[str, Callable[[Mapping[str, Any]], Awaitable[None]]]:
        return {
            "call": self._call,
            "wait": self._wait,
            "fault": self._fault,
            "driver": self._kill,
            "until": self._until,
            "log": self._log,
            "joined": self._joined,
            "append_directly": self._append,
            "edit_directly": self._edit,
            "budget_directly": self._budget,
            "model": self._model,
            "pieces": self._pieces,
            "any_error": self._any_error,
        }

    async def _call(self, step: Mapping[str, Any]) -> None:
        driver = await self._driver(step.get("on", ""))
        reply = driver.send(step["call"], step.get("args", {}))
        if "start" in step:
            self._started[step["start"]] = step["call"], driver, reply
            return
        self._compare(step, await driver.reply_of(step["call"], reply))

    async def _driver(self, name: str) -> Driver:
        """Returns a driver; one that is new is connected."""
        if name not in self._drivers:
            driver = await Driver.started(
                self.client, {**self.service.for_drivers, **self._environment}
            )
            self._drivers[name] = driver
            connected = await driver.call("connect", {})
            if "unsupported" in connected:
                raise Unsupported(connected["unsupported"])
            assert "result" in connected, f"it does not connect: {connected}"
        return self._drivers[name]

    async def _wait(self, step: Mapping[str, Any]) -> None:
        call, driver, reply = self._started.pop(step["wait"])
        self._compare(step, await driver.reply_of(call, reply))

    def _compare(self, step: Mapping[str, Any], reply: Mapping[str, Any]) -> None:
        if "unsupported" in reply:
            raise Unsupported(reply["unsupported"])
        wanted = step.get("error")
        if wanted is not None:
            assert "error" in reply, f"it succeeded: {str(reply)[:600]}"
            differs = difference(wanted, reply["error"], "the error")
        else:
            assert "result" in reply, f"it failed: {reply.get('error')}"
            differs = difference(step.get("expect", {}), reply["result"])
        assert not differs, differs
        for name, path in step.get("save", {}).items():
            self.names[name] = _at(reply.get("result", reply.get("error")), path)

    async def _fault(self, step: Mapping[str, Any]) -> None:
        await self.service.break_down(step["fault"], step.get("direction", "to_client"))

    async def _kill(self, step: Mapping[str, Any]) -> None:
        await self._drivers.pop(step.get("on", "")).kill()

    async def _until(self, step: Mapping[str, Any]) -> None:
        wanted = step["until"]
        if "seconds" in wanted:
            await asyncio.sleep(wanted["seconds"])
            return
        async with self.service.past_the_proxy() as client, asyncio.timeout(REPLY_SECONDS):
            session = client.session(wanted["session"])
            while (await session.info()).head < wanted["head"]:
                await asyncio.sleep(POLL_SECONDS)

    async def _texts(self, session: str) -> list[str]:
        """Returns the texts of a log, read past the proxy; none where there is no session."""
        async with self.service.past_the_proxy() as client:
            return [one.text or one.observation async for one in client.session(session).chunks()]

    async def _joined(self, step: Mapping[str, Any]) -> None:
        found = "".join(await self._texts(step["joined"]["session"]))
        wanted = step["joined"]["text"].strip()
        assert found == wanted, f"the log has {len(found)} characters, not {len(wanted)}"

    async def _log(self, step: Mapping[str, Any]) -> None:
        found, wanted = await self._texts(step["log"]["session"]), step["log"]["texts"]
        first = next((n for n, (a, b) in enumerate(zip(wanted, found, strict=False)) if a != b), 0)
        assert found == wanted, (
            f"the log has {len(found)} chunks, not {len(wanted)}; from {first}:"
            f" {found[first : first + 5]}, not {wanted[first : first + 5]}"
        )

    async def _append(self, step: Mapping[str, Any]) -> None:
        async with self.service.past_the_proxy() as client:
            wanted = step["append_directly"]
            session, texts = client.session(wanted["session"]), wanted["texts"]
            for start in range(0, len(texts), BATCH_CHUNKS):
                await session.append(texts[start : start + BATCH_CHUNKS])

    async def _edit(self, step: Mapping[str, Any]) -> None:
        wanted = step["edit_directly"]
        edit = palimpsest.Edit(op="put", path=wanted["path"], value=wanted["value"])
        async with self.service.past_the_proxy() as client:
            await client.session(wanted["session"]).memory(wanted["memory"]).edit([edit])

    async def _budget(self, step: Mapping[str, Any]) -> None:
        wanted = step["budget_directly"]
        async with self.service.past_the_proxy() as client:
            session = client.session(wanted["session"])
            await session.set_budget("total", limit_tokens=wanted["limit_tokens"])

    async def _model(self, step: Mapping[str, Any]) -> None:
        if step["model"] == "hold":
            self.service.replies.clear()
        else:
            self.service.replies.set()

    async def _pieces(self, step: Mapping[str, Any]) -> None:
        wanted, driver = step["pieces"], await self._driver(step.get("on", ""))
        text = wanted.get("begins", "")
        while True:
            reply = await driver.call("next_piece", {"handle": wanted["handle"]})
            result = reply.get("result", {})
            if "text" not in result:
                break
            text = result["text"] if result["restarts"] else text + result["text"]
        if "error" in wanted:
            self._compare({"error": wanted["error"]}, reply)
            return
        self._compare({"expect": {"answer": wanted["answer"]}}, reply)
        assert text == wanted["text"], f"the pieces are {text!r}, not {wanted['text']!r}"

    async def _any_error(self, step: Mapping[str, Any]) -> None:
        started = [self._started.pop(name) for name in step["any_error"]]
        replies = [await driver.reply_of(call, reply) for call, driver, reply in started]
        refused = [one for one in replies if "error" in one]
        assert refused, "all of them succeeded"
        for one in refused:
            self._compare(step, one)


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value
