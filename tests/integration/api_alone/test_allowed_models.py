"""Models that clients name: each call that takes one refuses what the operator does not allow."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

import palimpsest
from palimpsest import Question
from tests.support.harness import api

SCHEMA = "class N:\n    topics: list[str]\n"
NAME = "oobabooga/http://127.0.0.1:1/internal"

Call = Callable[[palimpsest.Session, str], Awaitable[Any]]


async def _rebuild(session: palimpsest.Session, model: str) -> None:
    memory = await session.create_memory("plain", schema_source=SCHEMA)
    await memory.rebuild("again", model=model)


async def _ask_many(session: palimpsest.Session, model: str) -> None:
    asked = (Question(query="?", reader="whole"), Question(query="?", reader="whole", model=model))
    await session.ask_all(asked)


#: By what is called, with the field that is refused.
CALLS: dict[str, tuple[Call, str]] = {
    "prism": (
        lambda session, model: session.create_memory("m", schema_source=SCHEMA, model=model),
        "memory.prism.model",
    ),
    "tree": (lambda session, model: session.create_tree("m", model=model), "memory.tree.model"),
    "navigation": (
        lambda session, model: session.create_tree("m", navigation_model=model),
        "memory.tree.navigation_model",
    ),
    "state": (lambda session, model: session.create_state("m", model=model), "memory.state.model"),
    "ask": (lambda session, model: session.ask("?", reader="dciso", model=model), "model"),
    "ask many": (_ask_many, "questions[1].model"),
    "schema": (lambda session, model: session.generate_schema("d", "?", model=model), "model"),
    "rebuild": (_rebuild, "new_memory.prism.model"),
}


@pytest.mark.parametrize("called", CALLS)
@pytest.mark.parametrize("model", [NAME, "ollama/llama3"])
async def test_a_model_that_is_not_allowed_is_refused_before_anything_is_made(
    client: palimpsest.Client, called: str, model: str
) -> None:
    session = await client.create_session(f"s-{uuid4().hex}")
    call, field = CALLS[called]
    with pytest.raises(palimpsest.InvalidArgument) as refused:
        await call(session, model)
    assert refused.value.reason == "MODEL_NOT_ALLOWED"
    assert list(refused.value.fields) == [field]
    assert refused.value.metadata["model"] == model
    assert "\n" not in str(refused.value)
    made = [one.id for one in await session.memories()]
    assert made == (["plain"] if called == "rebuild" else [])
    assert [one async for one in session.answers()] == []


async def test_a_memory_is_not_rebuilt_with_a_model_that_is_allowed_no_more(
    client: palimpsest.Client, at: tuple[str, str]
) -> None:
    session = await client.create_session(f"s-{uuid4().hex}")
    await session.create_tree("old", model="c/d", navigation_model="e/f")
    with api(at[0], PALIMPSEST_MODELS="c/*") as (_, address):
        async with palimpsest.connect(address) as other:
            tree = other.session(session.id).tree("old")
            assert (await tree.get()).info.tree is not None
            with pytest.raises(palimpsest.InvalidArgument) as refused:
                await tree.rebuild("same", model="c/e")
            assert list(refused.value.fields) == ["new_memory.tree.navigation_model"]
            with pytest.raises(palimpsest.InvalidArgument) as refused:
                await tree.rebuild("same", settings=palimpsest.TreeSettings(model="x/y"))
            assert list(refused.value.fields) == ["new_memory.tree.model"]
            await tree.rebuild("same", settings=palimpsest.TreeSettings(model="c/e"))
            assert (await tree.session.tree("same").get()).info.kind == "tree"
