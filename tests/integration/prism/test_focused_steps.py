"""Focused steps: memories that grow past their budget, and past their model's window."""

import json
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from service.app.kinds import memories_of
from service.domain.prism import losses, pacing, prompts
from service.domain.prism.memory import PrismMemory
from service.domain.prism.pacing import SizedChunk
from service.domain.prism.spec import ADAPTIVE_FOLD_TOKENS, Encoding, StepScope
from service.domain.prompting.flows import ModelRequest, Purpose
from service.domain.prompting.tokens import estimate_tokens
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.gateway.gateway import Gateway
from service.settings.config import Limits
from service.usecases.log.wake_ups import WakeUps
from service.usecases.memories.edit import Edit, Editor, Target
from service.usecases.memories.memories import Memories
from service.usecases.memories.progress_watcher import ProgressWatcher
from storage.engine.database import Database
from storage.memories import history, revisions
from tests.integration.support.crashing import Killed
from tests.integration.support.scripted import (
    CONFIG,
    ITEM,
    KEY,
    MEMORY,
    Script,
    answerer,
    make,
    prism_method,
    read,
)
from tests.integration.support.stored_answers import read_answer, store_question
from tests.integration.support.writing import append_texts, drop_wake_ups
from tests.support.contents import content_of
from tests.support.gateways import gateway

SOURCE = "class N:\n    topics: dict[str, list[str]]\n"
BUDGET = 300
#: The memory of these tests grows beyond this.
WINDOW = 3500
CHUNKS = 120
FOCUSED: dict[str, Any] = {
    "schema_source": SOURCE,
    "steps": StepScope.FOCUSED,
    "memory_tokens": BUDGET,
}


def change(op: str, path: str, value: Any) -> str:
    return json.dumps({"changes": [{"op": op, "path": path, "value": json.dumps(value)}]})


def said(number: int) -> str:
    """Returns what chunk `number`, from 1, says of its topic, at length."""
    return f"harbour {number} was told of: {'it has boats and ' * 6}a light {number}"


def about_itself(ask: ModelRequest, number: int) -> str:
    """Begins a topic with each chunk; asked for less, removes the first."""
    if ask.purpose is Purpose.CONSOLIDATE:
        first = re.findall(r'^\{"(\$.*?)":', ask.segments[1].text, re.MULTILINE)[0]
        return json.dumps({"changes": [{"op": "remove", "path": first, "value": ""}]})
    (text, *_), named = content_of(ask).texts, {"a": 1, "b": 2, "Of nothing.": CHUNKS + 1}
    position = named.get(text) or int(text.removeprefix("chunk "))
    return change("add", f"$.'topics'.'harbour {position}'", [said(position)])


async def grown(database: Database, **changes: Any) -> Script:
    """Returns a memory of CHUNKS topics, which is larger than its model's window."""
    await make(database, [f"chunk {n + 1}" for n in range(CHUNKS)], **(FOCUSED | changes))
    script = Script(reply=about_itself)
    await prism_method(database, script, window=WINDOW).drain(ITEM)
    return script


async def kinds(database: Database) -> list[str]:
    async with database.transaction(DEFAULT_TENANT) as tx:
        return [one.kind for one in await history.list_revisions(tx, KEY, MEMORY, -1, 1000)]


def reading(database: Database) -> Memories:
    return memories_of(
        database, WakeUps(drop_wake_ups), ProgressWatcher(database), b"token-key", Limits()
    )


async def value_of(database: Database) -> dict[str, list[str]]:
    stored = await read(database)
    shown = await reading(database).read_revision(DEFAULT_TENANT, "s", "m", stored.revision)
    value: dict[str, dict[str, list[str]]] = json.loads(shown.value_json)
    return value["topics"]


def calls(database: Database, script: Script) -> Gateway:
    return gateway(script, database)


@pytest.mark.prove
@pytest.mark.parametrize("encoding", Encoding)
async def test_a_memory_grows_past_its_window_and_its_prompts_do_not(
    database: Database, encoding: Encoding
) -> None:
    script = await grown(database, encoding=encoding, fold_tokens=ADAPTIVE_FOLD_TOKENS)
    assert "consolidation" not in await kinds(database)
    assert await value_of(database) == {f"harbour {n}": [said(n)] for n in range(1, CHUNKS + 1)}
    assert estimate_tokens(json.dumps(await value_of(database))) > WINDOW
    sizes = [estimate_tokens(ask.text) for ask in script.asked]
    assert max(sizes[CHUNKS // 2 :]) <= max(sizes[: CHUNKS // 2]) + 8
    assert {ask.template for ask in script.asked[:4]} == {prompts.REVISE}
    assert {ask.template for ask in script.asked[20:]} == {prompts.REVISE_FOCUSED}


def knows_what_it_sees(ask: ModelRequest, number: int) -> str:
    """Writes a known topic anew, and loses nothing once it sees what is there."""
    shown = re.search(r'"\$\[\'topics\'\]\[\'harbour 3\'\]":(\[.*?\])', ask.text)
    known = json.loads(shown[1]) if shown else []
    return change("add", "$.'topics'.'harbour 3'", [*known, "it burnt down"])


async def test_what_a_step_was_not_shown_is_shown_before_it_is_changed(database: Database) -> None:
    await grown(database)
    script = Script(reply=knows_what_it_sees)
    # Nothing in it names the topic: it cannot be found by words.
    await append_texts(database, "s", ["The old place burnt down."], first=CHUNKS + 1)
    await prism_method(database, script, window=WINDOW).drain(ITEM)
    first, second = script.asked
    assert said(3) not in first.text
    assert said(3) in second.text
    assert (await value_of(database))["harbour 3"] == [said(3), "it burnt down"]


@pytest.mark.prove
async def test_a_worker_that_dies_between_two_looks_is_taken_over_without_a_call_more(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await grown(database)
    script = Script(reply=knows_what_it_sees)
    await append_texts(database, "s", ["The old place burnt down."], first=CHUNKS + 1)
    commit = revisions.commit_revision
    with monkeypatch.context() as patched:

        async def dies(*_: Any, **__: Any) -> bool:
            raise Killed

        patched.setattr(revisions, "commit_revision", dies)
        with pytest.raises(Killed):
            await prism_method(database, script, window=WINDOW).drain(ITEM)
    assert revisions.commit_revision is commit
    asked = [ask.text for ask in script.asked]
    assert len(asked) == 2
    # More has come since, which the step that was paid for does not see.
    await append_texts(database, "s", ["It was on a Monday."], first=CHUNKS + 2)
    script.reply = lambda ask, _: (
        knows_what_it_sees(ask, _) if "burnt" in ask.text else '{"changes": []}'
    )
    await prism_method(database, script, window=WINDOW).drain(ITEM)
    assert [ask.text for ask in script.asked[:2]] == asked
    assert len(script.asked) == 3, "only the step that is new was paid for"
    assert (await value_of(database))["harbour 3"] == [said(3), "it burnt down"]


async def test_a_change_of_what_cannot_be_shown_is_rejected_and_reported(
    database: Database,
) -> None:
    long = [{"op": "add", "path": "$.'topics'.'long'", "value": json.dumps(["x " * 9000])}]
    await make(database, ["a", "b"], **FOCUSED)
    replies = [json.dumps({"changes": long}), change("update", "$.'topics'.'long'", ["short"])]
    script = Script(reply=lambda _, number: replies[number - 1])
    await prism_method(database, script, window=WINDOW).drain(ITEM)
    assert len(script.asked) == 2
    assert (await read(database)).applied_position == 2
    assert (await value_of(database))["long"] == ["x " * 9000]
    async with database.transaction(DEFAULT_TENANT) as tx:
        found = await tx.fetch("SELECT reason FROM rejection")
        (reason,) = [one for (one,) in found]
    assert "was not shown" in reason


@pytest.mark.prove
async def test_a_question_to_a_memory_beyond_the_window_is_answered_from_what_fits_it(
    database: Database,
) -> None:
    await grown(database)
    stored = await read(database)
    question = await store_question(
        database,
        MEMORY,
        "What is known of harbour 77?",
        revision=stored.revision,
        applied_position=CHUNKS,
    )
    script = Script(reply=lambda ask, _: "[ANSWER]\nBoats.\n[PATHS]\n$.'topics'.'harbour 77'[0]\n")
    made = answerer(database, calls(database, script), CONFIG, window=WINDOW)
    await made.make(question)
    (ask,) = script.asked
    assert ask.template == prompts.ANSWER_FOCUSED
    assert said(77) in ask.text
    assert estimate_tokens(ask.text) + ask.max_output_tokens <= WINDOW
    answer = await read_answer(database, question)
    assert answer.text == "Boats."
    (citation,) = answer.citations
    assert (citation.path, citation.position) == ("$['topics']['harbour 77'][0]", 77)


async def test_a_memory_is_loaded_for_an_answer_beside_the_event_loop(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(database, ["a"], **FOCUSED)
    script = Script(reply=about_itself)
    await prism_method(database, script, window=WINDOW).drain(ITEM)
    stored = await read(database)
    question = await store_question(
        database, MEMORY, "A light?", revision=stored.revision, applied_position=1
    )
    load, threads = PrismMemory.load, list[int]()

    def noted(*args: Any, **named: Any) -> PrismMemory:
        threads.append(threading.get_ident())
        return load(*args, **named)

    monkeypatch.setattr(PrismMemory, "load", noted)
    script = Script(reply=lambda *_: "[ANSWER]\nOne.\n[PATHS]\n$.'topics'.'harbour 1'[0]\n")
    await answerer(database, calls(database, script), CONFIG, window=WINDOW).make(question)
    assert (await read_answer(database, question)).text == "One."
    assert threads
    assert threading.get_ident() not in threads


def noting(work: Callable[..., Any], threads: set[int]) -> Callable[..., Any]:
    """Returns the same work, which says in which threads it was done."""

    def noted(*args: Any, **named: Any) -> Any:
        threads.add(threading.get_ident())
        return work(*args, **named)

    return noted


async def test_a_memory_is_read_and_changed_beside_the_event_loop(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, set[int]] = {}
    for of, name in (
        (PrismMemory, "load"),
        (PrismMemory, "apply"),
        (pacing, "next_need"),
        (pacing, "parts"),
        (SizedChunk, "of"),
        (losses, "after_step"),
    ):
        monkeypatch.setattr(of, name, noting(getattr(of, name), threads.setdefault(name, set())))
    await make(database, ["a", "b"], **FOCUSED)
    script = Script(reply=about_itself)
    await prism_method(database, script, window=WINDOW).drain(ITEM)
    assert (await kinds(database))[-1] == "step"
    assert all(threads.values())
    assert [name for name, seen in threads.items() if threading.get_ident() in seen] == []


async def test_a_consolidation_by_hand_goes_through_it_in_parts(database: Database) -> None:
    await grown(database)
    editor = Editor(database, reading(database), Limits())
    await editor.consolidate(DEFAULT_TENANT, Target(session="s", memory="m"))
    script = Script(reply=about_itself)
    await prism_method(database, script, window=WINDOW).drain(ITEM)
    assert len(script.asked) > 2
    assert {ask.template for ask in script.asked} == {prompts.CONSOLIDATE_PART}
    left = await value_of(database)
    assert len(left) == CHUNKS - len(script.asked)
    assert (await kinds(database))[-1] == "consolidation"
    assert all(estimate_tokens(ask.text) < WINDOW for ask in script.asked)


async def test_a_consolidation_that_no_prompt_has_room_for_says_what_to_do(
    database: Database,
) -> None:
    await make(database, ["a"], **FOCUSED)
    long = json.dumps([{"op": "add", "path": "$.'topics'.'a'", "value": '["' + "x " * 9000 + '"]'}])
    script = Script(reply=lambda *_: json.dumps({"changes": json.loads(long)}))
    await prism_method(database, script, window=WINDOW).drain(ITEM)
    editor = Editor(database, reading(database), Limits())
    await editor.consolidate(DEFAULT_TENANT, Target(session="s", memory="m"))
    await prism_method(database, script, window=WINDOW).drain(ITEM)
    stored = await read(database)
    assert stored.stall is not None
    assert "shorten it by hand" in stored.stall.cause


async def test_what_is_edited_by_hand_is_shown_to_the_next_step(database: Database) -> None:
    await grown(database)
    editor = Editor(database, reading(database), Limits())
    edit = Edit(op=None, path="$.topics.'harbour 9'", value_json='["by hand"]')
    await editor.revise(DEFAULT_TENANT, Target(session="s", memory="m"), [edit])
    await append_texts(database, "s", ["Of nothing."], first=CHUNKS + 1)
    script = Script(reply=about_itself)
    await prism_method(database, script, window=WINDOW).drain(ITEM)
    assert "{\"$['topics']['harbour 9']\":[\"by hand\"]}" in script.asked[0].text
