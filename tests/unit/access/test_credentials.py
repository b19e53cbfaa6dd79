"""Keys as clients send them, and how they are looked up."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from string import ascii_letters, digits

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.access.credentials import (
    ID_BYTES,
    SECRET_BYTES,
    Credentials,
    KeyText,
    is_key,
    parsed_key,
)
from service.domain.values.errors import Exhausted
from service.usecases.access import lookups
from service.usecases.access.lookups import CachedLookups

SECRETS = st.binary(min_size=SECRET_BYTES, max_size=SECRET_BYTES)
IDS = st.binary(min_size=ID_BYTES, max_size=ID_BYTES)


@given(IDS, SECRETS)
def test_a_key_reads_back_and_its_form_is_the_documented_one(id: bytes, secret: bytes) -> None:
    key = KeyText.made_of(id, secret)
    assert re.fullmatch(r"pk_[a-z2-7]{16}_[0-9A-Za-z]{49}", key.text)
    assert is_key(key.text)
    assert parsed_key(key.text) == key
    assert len(key.hash) == 32


@given(IDS, SECRETS, st.integers(0, 68), st.sampled_from(ascii_letters + digits + "_-é\0"))
def test_a_mistyped_key_is_no_key(id: bytes, secret: bytes, place: int, typed: str) -> None:
    text = KeyText.made_of(id, secret).text
    wrong = text[:place] + typed + text[place + 1 :]
    assert (parsed_key(wrong) is not None) == (wrong == text)
    for cut in (text[:place], text + typed, text[:place] + text[place + 1 :]):
        assert parsed_key(cut) is None


@given(IDS, SECRETS, SECRETS)
def test_other_secrets_are_other_keys(id: bytes, secret: bytes, other: bytes) -> None:
    one, two = KeyText.made_of(id, secret), KeyText.made_of(id, other)
    assert (one.text == two.text) == (one.hash == two.hash) == (secret == other)


def test_secrets_are_not_shown() -> None:
    key = KeyText.made_of(bytes(ID_BYTES), bytes(SECRET_BYTES))
    for shown in (repr(key), repr(Credentials(token=key.text))):
        assert key.text not in shown
        assert "0000" not in shown


class Store:
    """What there is to look up."""

    def __init__(self, **found: int) -> None:
        self.found = found
        self.batches: list[list[str]] = []
        self.go = asyncio.Event()
        self.go.set()
        self.error: Exception | None = None

    async def load(self, ids: Sequence[str]) -> Mapping[str, int]:
        self.batches.append(list(ids))
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return {id: self.found[id] for id in ids if id in self.found}


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_what_was_found_or_not_is_trusted_for_its_time() -> None:
    store, clock = Store(a=1), Clock()
    cached = CachedLookups(store.load, seconds=10, clock=clock)
    for _ in range(3):
        assert await cached.find("a") == 1
        assert await cached.find("b") is None
    assert store.batches == [["a"], ["b"]]
    clock.now, store.found = 9.9, {"b": 2}
    assert await cached.find("a") == 1
    clock.now = 10.1
    assert await cached.find("a") is None
    assert await cached.find("b") == 2
    store.found = {}
    cached.forget()
    assert await cached.find("b") is None


async def test_one_query_runs_at_a_time_whatever_clients_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookups, "BATCH", 10)
    monkeypatch.setattr(lookups, "MAX_WAITING", 25)
    store = Store()
    cached = CachedLookups(store.load, seconds=10)
    store.go.clear()
    waiting = [asyncio.create_task(cached.find(f"k{n % 25}")) for n in range(50)]
    while len(store.batches) < 1 or len(cached._waiting) < 25:
        await asyncio.sleep(0)
    with pytest.raises(Exhausted):
        await cached.find("more")
    # One that is cancelled takes nothing from the others.
    waiting[0].cancel()
    store.go.set()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError)
    assert done[1:] == [None] * 49
    assert [len(one) for one in store.batches] == [10, 10, 5]


async def test_a_failure_is_that_of_all_who_wait_and_not_remembered() -> None:
    store = Store(a=1)
    store.error = RuntimeError("lost")
    cached = CachedLookups(store.load, seconds=10)
    failed = await asyncio.gather(cached.find("a"), cached.find("a"), return_exceptions=True)
    assert [str(one) for one in failed] == ["lost", "lost"]
    store.error = None
    assert await cached.find("a") == 1


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "MAX_KNOWN", 3)
    store = Store(a=1)
    cached = CachedLookups(store.load, seconds=10)
    for id in ("a", "x", "y", "a", "z"):
        await cached.find(id)
    assert list(cached._known) == ["y", "a", "z"]
