"""LangGraph's own graphs, and its conformance suite of checkpointers."""

import asyncio
import threading
from collections.abc import AsyncIterator
from operator import add
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import PutOp
from langgraph.types import Command, interrupt

from palimpsest import Retention
from palimpsest.integrations.langgraph import PalimpsestSaver, PalimpsestStore
from palimpsest.sync import Client


class State(TypedDict):
    said: Annotated[list[str], add]


def graph_of(saver: PalimpsestSaver) -> Any:
    """Returns a graph that stops in the middle and asks."""

    def greet(state: State) -> dict[str, list[str]]:
        return {"said": [f"hello {len(state['said'])}"]}

    def ask(state: State) -> dict[str, list[str]]:
        return {"said": [f"asked: {interrupt('your name?')}"]}

    builder = StateGraph(State)
    builder.add_node(greet)
    builder.add_node(ask)
    builder.add_edge(START, "greet")
    builder.add_edge("greet", "ask")
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver)


def test_the_conformance_suite_passes_in_all_capabilities(client: Client, name: str) -> None:
    made = iter(range(100))

    @checkpointer_test(name="PalimpsestSaver")
    async def saver() -> AsyncIterator[BaseCheckpointSaver[int]]:
        yield PalimpsestSaver(client, prefix=f"{name}-{next(made)}:")

    report = asyncio.run(validate(saver))
    assert {one: (found.passed, found.failures) for one, found in report.results.items()} == {
        one: (True, [])
        for one in (
            *("put", "put_writes", "get_tuple", "list"),
            *("delete_thread", "delete_for_runs", "copy_thread", "prune"),
        )
    }
    assert sum(one.tests_passed for one in report.results.values()) >= 81


def test_a_run_that_stopped_goes_on_in_another_process(client: Client, name: str) -> None:
    config = {"configurable": {"thread_id": f"{name}/a thread"}}
    first = graph_of(PalimpsestSaver(client)).invoke({"said": ["hi"]}, config)
    assert first["__interrupt__"][0].value == "your name?"
    graph = graph_of(PalimpsestSaver(client))
    assert graph.get_state(config).next == ("ask",)
    done = graph.invoke(Command(resume="Ann"), config)
    assert done["said"] == ["hi", "hello 1", "asked: Ann"]
    history = [one.values["said"] for one in graph.get_state_history(config)]
    assert history == [["hi", "hello 1", "asked: Ann"], ["hi", "hello 1"], ["hi"], []]


async def test_the_async_methods_do_the_same(client: Client, name: str) -> None:
    config = {"configurable": {"thread_id": name}}
    graph = graph_of(PalimpsestSaver(client))
    await graph.ainvoke({"said": ["hi"]}, config)
    done = await graph.ainvoke(Command(resume="Ann"), config)
    assert done["said"][-1] == "asked: Ann"
    assert len([one async for one in graph.aget_state_history(config)]) == 4


def test_large_values_come_back_and_are_stored_once(client: Client, name: str) -> None:
    saver = PalimpsestSaver(client, prefix=f"{name}:")
    config: Any = {"configurable": {"thread_id": "large", "checkpoint_ns": ""}}
    # Bytes that no compression makes small: more than one append holds.
    value = bytes(range(256)) * 8192
    noise = b"".join(str(hash((n, name))).encode() for n in range(120_000))
    before = 0
    for step in range(3):
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"file": value + noise}
        checkpoint["channel_versions"] = {"file": 1}
        new = {"file": 1} if step == 0 else {}
        config = saver.put(config, checkpoint, {"step": step}, new)
        if step == 0:
            before = client.session(f"{name}:large").info().content_bytes
    found = saver.get_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"]["file"] == value + noise
    after = client.session(f"{name}:large").info().content_bytes
    assert after - before < 10_000 < before


def test_a_deleted_thread_begins_anew(client: Client, name: str) -> None:
    saver = PalimpsestSaver(client)
    config = {"configurable": {"thread_id": name}}
    for _ in range(2):
        graph = graph_of(saver)
        graph.invoke({"said": ["hi"]}, config)
        assert graph.get_state(config).values["said"] == ["hi", "hello 1"]
        saver.delete_thread(name)
        assert saver.get_tuple(config) is None


def test_sessions_of_threads_have_the_retention_and_no_memory(client: Client, name: str) -> None:
    saver = PalimpsestSaver(client, prefix=f"{name}:", retention=Retention(idle_session_days=30))
    graph_of(saver).invoke({"said": ["hi"]}, {"configurable": {"thread_id": "t"}})
    session = client.session(f"{name}:t")
    assert session.info().retention.idle_session_days == 30
    assert list(session.memories()) == []


def test_pruned_threads_go_on(client: Client, name: str) -> None:
    saver = PalimpsestSaver(client)
    config = {"configurable": {"thread_id": name}}
    graph = graph_of(saver)
    graph.invoke({"said": ["hi"]}, config)
    saver.prune([name])
    assert len(list(saver.list(config))) == 1
    assert graph.invoke(Command(resume="Ann"), config)["said"] == ["hi", "hello 1", "asked: Ann"]
    with pytest.raises(ValueError, match="keep_latest"):
        saver.prune([name], strategy="some")


def test_items_are_put_found_and_removed(client: Client, name: str) -> None:
    store = PalimpsestStore(client, prefix=f"{name}:")
    users = ("users", "ann/ö", "facts")
    store.put(users, "food", {"text": "Ann eats no nuts", "weight": 3})
    store.put(users, 'it\'s "odd" \\ é', {"text": "She plays the viola", "weight": 1})
    store.put(("users", "ben", "facts"), "food", {"text": "Ben likes soup", "weight": 2})
    item = store.get(users, 'it\'s "odd" \\ é')
    assert item is not None
    assert (item.value["weight"], item.namespace) == (1, users)
    store.put(users, "food", {"text": "Ann eats no nuts and no fish", "weight": 4})
    again = store.get(users, "food")
    assert again is not None
    assert again.created_at < again.updated_at
    found = store.search(("users",), query="Who plays the viola?", limit=2)
    assert (found[0].key, found[0].score is not None) == ('it\'s "odd" \\ é', True)
    store.put(("users", "ben", "facts"), "light", {"text": "nothing"})
    heavy = store.search(("users",), filter={"weight": {"$gte": 2}})
    assert sorted(one.value["weight"] for one in heavy) == [2, 4]
    assert store.list_namespaces(prefix=("users",), max_depth=2) == [
        ("users", "ann/ö"),
        ("users", "ben"),
    ]
    assert store.list_namespaces(suffix=("ben", "*")) == [("users", "ben", "facts")]
    store.delete(users, "food")
    store.delete(users, "food")
    assert store.get(users, "food") is None
    assert store.get(("never",), "x") is None
    with pytest.raises(ValueError, match=r"\$like"):
        store.search(("users",), filter={"weight": {"$like": 2}})


def test_puts_at_once_are_all_kept(client: Client, name: str) -> None:
    stores = [PalimpsestStore(client, prefix=f"{name}:") for _ in range(4)]
    puts = [PutOp(("n",), f"k{number}", {"n": number}) for number in range(4)]
    workers = [
        threading.Thread(target=store.batch, args=([put],))
        for store, put in zip(stores, puts, strict=True)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert {one.key for one in stores[0].search(("n",))} == {"k0", "k1", "k2", "k3"}


async def test_a_node_reads_and_writes_the_store(client: Client, name: str) -> None:
    store = PalimpsestStore(client, prefix=f"{name}:")

    async def note(state: State, runtime: Runtime[None]) -> dict[str, list[str]]:
        assert runtime.store is not None
        known = await runtime.store.asearch(("notes",), query="nuts")
        await runtime.store.aput(("notes",), f"n{len(known)}", {"text": state["said"][-1]})
        return {"said": [one.value["text"] for one in known]}

    builder = StateGraph(State)
    builder.add_node(note)
    builder.add_edge(START, "note")
    graph = builder.compile(store=store)
    assert (await graph.ainvoke({"said": ["no nuts"]}))["said"] == ["no nuts"]
    assert (await graph.ainvoke({"said": ["and?"]}))["said"] == ["and?", "no nuts"]
