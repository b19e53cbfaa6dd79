"""The store of LangGraph, in memories that are edited by hand."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
)

from palimpsest._errors import Aborted, NotFound
from palimpsest._history import Edit
from palimpsest._values_log import Retention
from palimpsest.integrations._records import key
from palimpsest.sync import Client, Memory

#: The memory of a namespace, and its schema.
_MEMORY = "items"
_SCHEMA = '''
class Item:
    value: str
    """The value, as JSON."""
    created_at: str
    updated_at: str

class Store:
    items: dict[str, Item]
    """Items by key."""
'''
#: The key of a session's metadata with the namespace, as JSON.
_NAMESPACE = "langgraph_namespace"
MAX_NAMESPACE_CHARACTERS = 1024
#: Edits of one revision.
MAX_EDITS = 500
#: Entries that a search looks at in each namespace.
MAX_FOUND = 100

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda value, other: bool(value == other),
    "$ne": lambda value, other: bool(value != other),
    # What an item does not have is neither more nor less, as in LangGraph's PostgreSQL store.
    "$gt": lambda value, other: value is not None and float(value) > float(other),
    "$gte": lambda value, other: value is not None and float(value) >= float(other),
    "$lt": lambda value, other: value is not None and float(value) < float(other),
    "$lte": lambda value, other: value is not None and float(value) <= float(other),
}


class PalimpsestStore(BaseStore):
    """Keeps the items of each namespace in a memory of a session of its own.

        store = PalimpsestStore(palimpsest.sync.connect())
        graph = builder.compile(store=store)

    Each put and delete is a revision of the memory, with its history: `palimpsest memory log -s
    "langgraph-store:…" -m items`. `search` with a query ranks by words and vectors of the service,
    which needs no `index` here and calls no language model. A namespace holds 1 MiB. `retention` is
    that of new sessions. The async methods run the others in threads.
    """

    supports_ttl = False

    def __init__(
        self,
        client: Client,
        *,
        prefix: str = "langgraph-store:",
        retention: Retention | None = None,
    ) -> None:
        """`client` stays the program's, which closes it."""
        self._client = client
        self._prefix = prefix
        self._retention = retention

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Runs operations: reads see the items before the puts of the same batch."""
        given = list(ops)
        results: list[Result] = []
        read: dict[tuple[str, ...], dict[str, Item]] = {}
        puts: dict[tuple[str, ...], dict[str, PutOp]] = {}
        for op in given:
            if isinstance(op, PutOp):
                puts.setdefault(op.namespace, {})[op.key] = op
                results.append(None)
            elif isinstance(op, GetOp):
                if op.namespace not in read:
                    read[op.namespace] = self._items(op.namespace)
                results.append(read[op.namespace].get(op.key))
            elif isinstance(op, SearchOp):
                results.append(self._search(op))
            elif isinstance(op, ListNamespacesOp):
                results.append(self._list(op))
            else:
                raise ValueError(f"{type(op).__name__} is not an operation of a store")
        for namespace, changed in puts.items():
            self._put(namespace, changed)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Does as `batch`."""
        return await asyncio.to_thread(self.batch, list(ops))

    def _items(self, namespace: tuple[str, ...]) -> dict[str, Item]:
        try:
            value = self._memory(namespace).get().value
        except NotFound:
            return {}
        return {name: _item(namespace, name, one) for name, one in value.get("items", {}).items()}

    def _put(self, namespace: tuple[str, ...], changed: Mapping[str, PutOp]) -> None:
        """Makes the changes as one revision; creates the namespace for values."""
        memory = self._memory(namespace)
        while True:
            try:
                state = memory.get()
            except NotFound:
                if all(op.value is None for op in changed.values()):
                    return
                self._create(namespace)
                continue
            edits = list(_edits(state.value.get("items", {}), changed))
            try:
                for start in range(0, len(edits), MAX_EDITS):
                    part = edits[start : start + MAX_EDITS]
                    expected = state.revision if start == 0 else None
                    memory.edit(part, expected_revision=expected, comment="LangGraph")
                return
            except Aborted as error:
                # Another program changed the namespace: the times of creation are read again.
                if error.reason != "REVISION_CONFLICT":
                    raise

    def _create(self, namespace: tuple[str, ...]) -> None:
        name = json.dumps(namespace, ensure_ascii=False)
        if len(name) > MAX_NAMESPACE_CHARACTERS:
            raise ValueError(f"a namespace has more than {MAX_NAMESPACE_CHARACTERS} characters")
        session = self._client.session(self._session(namespace))
        session.create(
            exist_ok=True,
            default_memory=False,
            metadata={_NAMESPACE: name},
            retention=self._retention,
        )
        session.create_memory(_MEMORY, schema_source=_SCHEMA, exist_ok=True)

    def _search(self, op: SearchOp) -> list[SearchItem]:
        found: list[SearchItem] = []
        for namespace in self._namespaces():
            if namespace[: len(op.namespace_prefix)] != op.namespace_prefix:
                continue
            items = self._items(namespace)
            scores = self._scores(namespace, op.query) if op.query else {}
            found += [
                _search_item(item, scores.get(item.key))
                for item in items.values()
                if _matches(item.value, op.filter)
            ]
        if op.query:
            # What no word or vector finds is last, as in LangGraph's own stores.
            found.sort(key=lambda item: (item.score is None, -(item.score or 0.0)))
        return found[op.offset : op.offset + op.limit]

    def _scores(self, namespace: tuple[str, ...], query: str) -> dict[str, float]:
        """Returns the best score of each key that the query finds."""
        session = self._client.session(self._session(namespace))
        found = session.search_memories(query, memories=[_MEMORY], limit=MAX_FOUND)
        scores: dict[str, float] = {}
        for one in found.results:
            name = _key_of(one.entry.path)
            if name is not None:
                scores[name] = max(one.score, scores.get(name, 0.0))
        return scores

    def _list(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        conditions = op.match_conditions or ()
        found = {
            namespace[: op.max_depth] if op.max_depth is not None else namespace
            for namespace in self._namespaces()
            if all(_fits(namespace, one) for one in conditions) and self._items(namespace)
        }
        return sorted(found)[op.offset : op.offset + op.limit]

    def _namespaces(self) -> Iterator[tuple[str, ...]]:
        for session in self._client.sessions():
            if session.id.startswith(self._prefix) and _NAMESPACE in session.metadata:
                yield tuple(json.loads(session.metadata[_NAMESPACE]))

    def _memory(self, namespace: tuple[str, ...]) -> Memory:
        return self._client.session(self._session(namespace)).memory(_MEMORY)

    def _session(self, namespace: tuple[str, ...]) -> str:
        """Returns the session of a namespace: readable, and different for different ones."""
        words = ".".join(namespace)
        plain = "".join(letter if letter.isalnum() or letter in "-_.@" else "_" for letter in words)
        return f"{self._prefix}{plain.encode()[:160].decode(errors='ignore')}-{key(namespace)[:16]}"


def _edits(there: Mapping[str, Any], changed: Mapping[str, PutOp]) -> Iterator[Edit]:
    now = datetime.now(UTC).isoformat()
    for name, op in changed.items():
        path = f"$['items'][{_quoted(name)}]"
        if op.value is not None:
            created = there[name]["created_at"] if name in there else now
            value = json.dumps(op.value, ensure_ascii=False)
            yield Edit.put(path, {"value": value, "created_at": created, "updated_at": now})
        elif name in there:
            yield Edit.remove(path)


def _quoted(name: str) -> str:
    return "'" + json.dumps(name)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"


def _key_of(path: str) -> str | None:
    """Returns the key of the item that a path leads into."""
    start = "$['items']['"
    if not path.startswith(start):
        return None
    at = len(start)
    while at < len(path) and path[at] != "'":
        at += 2 if path[at] == "\\" else 1
    text = path[len(start) : at].replace('"', '\\"').replace("\\'", "'")
    return str(json.loads(f'"{text}"'))


def _item(namespace: tuple[str, ...], name: str, stored: Mapping[str, Any]) -> Item:
    return Item(
        value=json.loads(stored["value"]),
        key=name,
        namespace=namespace,
        created_at=datetime.fromisoformat(stored["created_at"]),
        updated_at=datetime.fromisoformat(stored["updated_at"]),
    )


def _search_item(item: Item, score: float | None) -> SearchItem:
    return SearchItem(
        namespace=item.namespace,
        key=item.key,
        value=item.value,
        created_at=item.created_at,
        updated_at=item.updated_at,
        score=score,
    )


def _matches(value: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    return all(_compares(value.get(name), one) for name, one in (wanted or {}).items())


def _compares(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        if any(name.startswith("$") for name in wanted):
            return all(_operator(name)(value, other) for name, other in wanted.items())
        return isinstance(value, dict) and _matches(value, wanted)
    return bool(value == wanted)


def _operator(name: str) -> Callable[[Any, Any], bool]:
    if name not in _COMPARE:
        raise ValueError(f"the operator {name!r} is none of {', '.join(_COMPARE)}")
    return _COMPARE[name]


def _fits(namespace: Sequence[str], condition: MatchCondition) -> bool:
    wanted = condition.path
    if len(namespace) < len(wanted):
        return False
    is_prefix = condition.match_type == "prefix"
    part = namespace[: len(wanted)] if is_prefix else namespace[-len(wanted) :]
    return all(one in ("*", name) for name, one in zip(part, wanted, strict=True))
