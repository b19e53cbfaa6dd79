"""Group commit: which appends share a transaction, and the outcome of each."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pytest
import structlog
from opentelemetry import trace

from service.telemetry import logs
from service.usecases.log import group_commit
from service.usecases.log.group_commit import GROUP_ENTRIES, GROUPS, GroupCommit, Later
from storage.engine.errors import StorageError, Unreachable, Violated
from tests.support.exported import exported

TENANT = UUID(int=1)
OTHER = UUID(int=2)


@dataclass
class Disk:
    """Writes when the test allows it, and refuses the appends that it names."""

    refused: dict[str, Exception] = field(default_factory=dict)
    written: list[tuple[UUID, list[str]]] = field(default_factory=list)
    under_way: int = 0
    free: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self, tenant_id: UUID, entries: Sequence[str]) -> list[str]:
        self.under_way += 1
        try:
            await self.free.wait()
            for one in entries:
                if one in self.refused:
                    raise self.refused[one]
        finally:
            self.under_way -= 1
        self.written.append((tenant_id, list(entries)))
        return [one.upper() for one in entries]

    def entries(self) -> list[str]:
        """Returns all that was written, in its order."""
        return [one for _, entries in self.written for one in entries]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps submissions from stepping aside on a busy machine."""
    monkeypatch.setattr(group_commit, "ASIDE_SECONDS", 60.0)


def put(commits: GroupCommit[str, str], entry: str, tenant: UUID = TENANT) -> "asyncio.Task[str]":
    return asyncio.create_task(commits.put(tenant, entry))


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_waits_is_written_together() -> None:
    disk = Disk()
    commits = GroupCommit(disk.write)
    names = [f"e{number}" for number in range(10)]
    waiting = []
    for name in names:
        waiting.append(put(commits, name))
        await turns()
    assert disk.under_way == GROUPS
    disk.free.set()
    assert [await one for one in waiting] == [name.upper() for name in names]
    # Each of those under way began with what was there; the rest went together.
    assert sorted(disk.written) == [(TENANT, ["e0"]), (TENANT, ["e1"]), (TENANT, names[2:])]


async def test_a_group_has_its_most_entries() -> None:
    disk = Disk()
    commits = GroupCommit(disk.write)
    waiting = [put(commits, str(number)) for number in range(GROUP_ENTRIES * 3)]
    await turns()
    disk.free.set()
    await asyncio.gather(*waiting)
    assert max(len(entries) for _, entries in disk.written) == GROUP_ENTRIES


async def test_tenants_never_share_a_group_nor_wait_for_each_other() -> None:
    disk = Disk()
    commits = GroupCommit(disk.write)
    waiting = []
    for _ in range(5):
        waiting += [put(commits, f"{tenant.int}", tenant) for tenant in (TENANT, OTHER)]
        await turns()
    assert disk.under_way == 2 * GROUPS
    disk.free.set()
    await asyncio.gather(*waiting)
    assert all(set(entries) == {str(tenant.int)} for tenant, entries in disk.written)
    await turns()
    assert commits._lanes == {}, "nothing is kept of tenants that are done"


async def test_one_that_is_refused_does_not_take_the_others_with_it() -> None:
    disk = Disk(refused={"bad": Violated("no", "key")})
    commits = GroupCommit(disk.write)
    waiting = {name: put(commits, name) for name in ("a", "b", "c", "bad", "d")}
    await turns()
    disk.free.set()
    with pytest.raises(Violated, match="no"):
        await waiting.pop("bad")
    assert {name: await one for name, one in waiting.items()} == dict(
        zip("abcd", "ABCD", strict=True)
    )


@pytest.mark.parametrize("error", [Unreachable("gone"), RuntimeError("a defect")])
async def test_an_error_that_splitting_does_not_help_is_raised_for_all_of_the_group(
    error: Exception,
) -> None:
    disk = Disk(refused={"bad": error})
    commits = GroupCommit(disk.write)
    waiting = [put(commits, name) for name in ("a", "bad", "b")]
    disk.free.set()
    assert await asyncio.gather(*waiting, return_exceptions=True) == [error] * 3
    assert await commits.put(TENANT, "e") == "E", "it goes on"


async def test_an_append_cancelled_before_the_write_is_left_out_and_after_it_is_reported() -> None:
    disk = Disk()
    left: list[tuple[str, str]] = []

    async def abandoned(tenant_id: UUID, some: Sequence[tuple[str, str]]) -> None:
        left.extend(some)

    commits = GroupCommit(disk.write, abandoned=abandoned)
    waiting = []
    for name in "abcd":
        waiting.append(put(commits, name))
        await turns()
    for one in (waiting[0], waiting[2]):
        one.cancel()
    await turns()
    disk.free.set()
    assert [await waiting[1], await waiting[3]] == ["B", "D"]
    await turns()
    assert left == [("a", "A")]
    assert "c" not in disk.entries()


async def test_an_error_without_a_waiting_append_is_dropped() -> None:
    disk = Disk(refused={"a": StorageError("no")})
    commits = GroupCommit(disk.write)
    waiting = put(commits, "a")
    await turns()
    waiting.cancel()
    await turns()
    disk.free.set()
    await turns()
    assert await commits.put(TENANT, "b") == "B"


async def test_a_group_logs_no_session_and_is_in_the_trace_of_its_first() -> None:
    seen: list[tuple[list[str], dict[str, object], int]] = []
    free = asyncio.Event()

    async def write(tenant_id: UUID, entries: Sequence[str]) -> list[str]:
        await free.wait()
        said = dict(structlog.contextvars.get_contextvars())
        seen.append((list(entries), said, trace.get_current_span().get_span_context().span_id))
        return list(entries)

    commits = GroupCommit(write)
    made: dict[str, int] = {}

    async def traced(entry: str) -> None:
        with logs.about(memory=entry), trace.get_tracer("test").start_as_current_span(entry) as own:
            made[entry] = own.get_span_context().span_id
            await commits.put(TENANT, entry)

    with exported():
        waiting = []
        for number in range(6):
            waiting.append(asyncio.create_task(traced(f"m{number}")))
            await turns()
        free.set()
        await asyncio.gather(*waiting)
    assert len(seen) == GROUPS + 1
    assert [(said, span) for _, said, span in seen] == [({}, made[one[0]]) for one, _, _ in seen]


async def test_a_commit_that_takes_long_steps_aside_and_keeps_its_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_commit, "ASIDE_SECONDS", 0.0)
    slow, written = asyncio.Event(), list[str]()

    async def write(tenant_id: UUID, entries: Sequence[str]) -> list[str]:
        if "a1" in entries:
            await slow.wait()
        written.extend(entries)
        return list(entries)

    commits: GroupCommit[str, str] = GroupCommit(write, key=lambda entry: entry[0])
    waiting = [put(commits, "a1")]
    await turns()
    waiting += [put(commits, name) for name in ("a2", "b1", "c1")]
    assert [await one for one in waiting[2:]] == ["b1", "c1"]
    assert written == ["b1", "c1"]
    slow.set()
    assert [await one for one in waiting[:2]] == ["a1", "a2"]


async def test_a_key_that_has_to_wait_is_written_by_itself_and_in_its_order() -> None:
    written: list[list[str]] = []

    async def write(tenant_id: UUID, entries: Sequence[str]) -> list[str | Exception | Later]:
        is_one = len({entry[0] for entry in entries}) == 1
        taken = [entry for entry in entries if is_one or entry[0] != "a"]
        written.append(taken)
        return [entry if entry in taken else Later.LATER for entry in entries]

    commits: GroupCommit[str, str] = GroupCommit(write, key=lambda entry: entry[0])
    names = ["a1", "b1", "a2", "c1"]
    assert await asyncio.gather(*(put(commits, name) for name in names)) == names
    assert written == [["b1", "c1"], ["a1", "a2"]]
