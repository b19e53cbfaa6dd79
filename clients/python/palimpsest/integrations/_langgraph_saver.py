"""The checkpoints of LangGraph, in the logs of sessions."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint import base
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    SerializerProtocol,
    get_checkpoint_id,
    get_checkpoint_metadata,
)

from palimpsest._values_log import Retention
from palimpsest.integrations._packing import VALUE_CHARACTERS
from palimpsest.integrations._records import Record, Records, key
from palimpsest.sync import Client

#: Bytes of a session's id.
_ID_BYTES = 256
#: The key of a session's metadata with the id of the thread.
_THREAD = "langgraph_thread"


def _in_order(path: str, task: str, index: int) -> tuple[str, str, int]:
    """Returns the key by which LangGraph applies writes, for releases that do not export it."""
    return path, task, index


_writes_sort_key = getattr(base, "writes_sort_key", _in_order)


class PalimpsestSaver(BaseCheckpointSaver[int]):
    """Saves the checkpoints of each thread in a session of its own.

        graph = builder.compile(checkpointer=PalimpsestSaver(palimpsest.sync.connect()))

    A thread is the session `PREFIX` + id of the thread, without a memory, so that no model is
    asked. The values of channels are stored once for each version. `retention` is that of new
    sessions: `Retention(idle_session_days=30)` deletes threads that are not used for 30 days.
    `prune`, `delete_for_runs` and `delete_thread` remove content for good, which needs a key with
    the scope `admin`. The async methods run the others in threads.
    """

    def __init__(
        self,
        client: Client,
        *,
        prefix: str = "langgraph:",
        retention: Retention | None = None,
        serde: SerializerProtocol | None = None,
    ) -> None:
        """`client` stays the program's, which closes it."""
        super().__init__(serde=serde)
        self._client = client
        self._prefix = prefix
        self._retention = retention

    # What LangGraph calls.

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Stores a checkpoint, and the values of the channels that changed."""
        named = config["configurable"]
        namespace = named.get("checkpoint_ns", "")
        bare: dict[str, Any] = dict(checkpoint)
        values = bare.pop("channel_values")
        full = get_checkpoint_metadata(config, metadata)
        records = [
            self._record(
                key("blob", namespace, channel, version),
                f"value of the channel {channel!r}",
                {"kind": "blob"},
                {"channel": channel, "version": version, "value": values.get(channel)},
                empty=channel not in values,
            )
            for channel, version in new_versions.items()
        ]
        body = {
            "namespace": namespace,
            "id": checkpoint["id"],
            "parent": named.get("checkpoint_id"),
            "checkpoint": bare,
            "metadata": full,
        }
        head = {"kind": "checkpoint", "namespace": key(namespace), "id": checkpoint["id"]}
        text = f"checkpoint of step {full.get('step')}"
        name = key("checkpoint", namespace, checkpoint["id"])
        # The last, since a checkpoint counts once all its values are there.
        records.append(self._record(name, text, head, body))
        self._append(named["thread_id"], records)
        return _config(named["thread_id"], namespace, checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Stores what a task wrote; what is stored already stays, but for errors and the like."""
        named = config["configurable"]
        namespace, checkpoint_id = named.get("checkpoint_ns", ""), named["checkpoint_id"]
        body = [
            {
                "task": task_id,
                "path": task_path,
                "index": WRITES_IDX_MAP.get(channel, number),
                "channel": channel,
                "value": value,
            }
            for number, (channel, value) in enumerate(writes)
        ]
        name = key("checkpoint", namespace, checkpoint_id)
        place = {"namespace": namespace, "id": checkpoint_id, "writes": body}
        record = self._record(name, f"{len(body)} write(s) of a task", {"kind": "writes"}, place)
        self._append(named["thread_id"], [record])

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Returns a checkpoint, by default the newest of its thread and namespace."""
        named = config["configurable"]
        thread, namespace = named["thread_id"], named.get("checkpoint_ns", "")
        records = self._records(thread)
        wanted = get_checkpoint_id(config) or self._newest(records, namespace)
        if wanted is None:
            return None
        log = _Log(self, records.read([key("checkpoint", namespace, wanted)]))
        found = log.checkpoints.get((namespace, wanted))
        if found is None:
            return None
        versions = found["checkpoint"].get("channel_versions", {})
        names = [key("blob", namespace, *one) for one in versions.items()]
        log.add(records.read(names))
        return log.tuple_of(thread, namespace, wanted)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yields checkpoints of a thread, or of all, newest first within a namespace."""
        named: Mapping[str, Any] = config["configurable"] if config else {}
        threads = [named["thread_id"]] if "thread_id" in named else self._threads()
        until = get_checkpoint_id(before) if before else None
        only = get_checkpoint_id(config) if config else None
        left = limit
        for thread in threads:
            log = _Log(self, self._records(thread).scan())
            for namespace, checkpoint_id in sorted(log.checkpoints, reverse=True):
                if named.get("checkpoint_ns", namespace) != namespace:
                    continue
                if (only and checkpoint_id != only) or (until and checkpoint_id >= until):
                    continue
                metadata = log.checkpoints[namespace, checkpoint_id]["metadata"]
                if any(metadata.get(name) != value for name, value in (filter or {}).items()):
                    continue
                if left is not None and left <= 0:
                    return
                left = None if left is None else left - 1
                yield log.tuple_of(thread, namespace, checkpoint_id)

    def delete_thread(self, thread_id: str) -> None:
        """Deletes a thread, with all that is stored of it."""
        self._records(thread_id).delete()

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Removes the checkpoints and writes of some runs, in all threads."""
        runs = set(run_ids)
        for thread in self._threads():
            self._keep(thread, lambda log: log.without_runs(runs), "runs deleted")

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies a thread, with all its checkpoints, to a thread that replaces what is there."""
        records = self._records(source_thread_id).scan()
        self.delete_thread(target_thread_id)
        if records:
            self._append(target_thread_id, records)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Removes old checkpoints of threads; `delete` removes the threads.

        `keep_latest` keeps the newest checkpoint of each namespace, and before it those that it
        is reconstructed from: back to where each channel has its value.
        """
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"the strategy must be keep_latest or delete, not {strategy!r}")
        for thread in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread)
            else:
                self._keep(thread, _Log.latest, "checkpoints pruned")

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Does as `put`."""
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Does as `put_writes`."""
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Does as `get_tuple`."""
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Does as `list`."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (one := await asyncio.to_thread(next, found, None)) is not None:
            yield one

    async def adelete_thread(self, thread_id: str) -> None:
        """Does as `delete_thread`."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Does as `delete_for_runs`."""
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Does as `copy_thread`."""
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Does as `prune`."""
        await asyncio.to_thread(self.prune, thread_ids, strategy=strategy)

    # Where it is.

    def _records(self, thread: str) -> Records:
        name = self._prefix + quote(str(thread), safe=":@.-_~+=,")
        if len(name.encode()) > _ID_BYTES:
            name = self._prefix + key(thread)
        return Records(self._client, name, self._retention)

    def _threads(self) -> Sequence[str]:
        """Returns the ids of all threads."""
        sessions = (one for one in self._client.sessions() if one.id.startswith(self._prefix))
        return [one.metadata[_THREAD] for one in sessions if _THREAD in one.metadata]

    def _append(self, thread: str, records: Sequence[Record]) -> None:
        if len(str(thread)) > VALUE_CHARACTERS:
            raise ValueError(f"the id of a thread has more than {VALUE_CHARACTERS} characters")
        self._records(thread).append(records, {_THREAD: str(thread)})

    def _newest(self, records: Records, namespace: str) -> str | None:
        """Returns the id of the newest checkpoint; ids grow with time."""
        for chunk in records.newest({"kind": "checkpoint", "namespace": key(namespace)}):
            return chunk.metadata["id"]
        return None

    def _keep(self, thread: str, kept: Callable[["_Log"], set[str]], reason: str) -> None:
        records = self._records(thread)
        stored = records.scan()
        names = kept(_Log(self, stored))
        records.remove((one for one in stored if one.key not in names), reason)

    def _record(
        self,
        name: str,
        text: str,
        head: Mapping[str, str],
        body: Any,
        *,
        empty: bool = False,
    ) -> Record:
        kind, data = self.serde.dumps_typed(body)
        flags = json.dumps({"type": kind, "empty": empty})
        return Record(key=name, text=text, head={**head, "form": flags}, data=data)

    def _body(self, record: Record) -> Any:
        return self.serde.loads_typed((json.loads(record.head["form"])["type"], record.data))


class _Log:
    """What records say: checkpoints, values and writes, the newest of each."""

    def __init__(self, saver: PalimpsestSaver, records: Sequence[Record]) -> None:
        self._saver = saver
        self.checkpoints: dict[tuple[str, str], dict[str, Any]] = {}
        self._writes: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}
        self._blobs: dict[str, Record] = {}
        self.add(records)

    def add(self, records: Sequence[Record]) -> None:
        """Adds records, oldest first."""
        for record in records:
            kind = record.head.get("kind")
            if kind == "blob":
                self._blobs[record.key] = record
            elif kind == "checkpoint":
                body = self._saver._body(record)
                self.checkpoints[body["namespace"], body["id"]] = body
            elif kind == "writes":
                there = self._writes.setdefault(record.key, {})
                for write in self._saver._body(record)["writes"]:
                    place = write["task"], write["index"]
                    if write["index"] < 0 or place not in there:
                        there[place] = write

    def tuple_of(self, thread: str, namespace: str, checkpoint_id: str) -> CheckpointTuple:
        """Returns a checkpoint with its values and writes."""
        body = self.checkpoints[namespace, checkpoint_id]
        there = self._writes.get(key("checkpoint", namespace, checkpoint_id), {})
        order = sorted(there, key=lambda one: _writes_sort_key(there[one]["path"], *one))
        writes = [(there[one]["task"], there[one]["channel"], there[one]["value"]) for one in order]
        parent = body["parent"]
        return CheckpointTuple(
            config=_config(thread, namespace, checkpoint_id),
            checkpoint={**body["checkpoint"], "channel_values": dict(self._values(body))},
            metadata=body["metadata"],
            parent_config=_config(thread, namespace, parent) if parent else None,
            pending_writes=writes,
        )

    def latest(self) -> set[str]:
        """Returns the keys of what the newest checkpoints need."""
        kept: set[str] = set()
        for namespace in {namespace for namespace, _ in self.checkpoints}:
            current = max(one for name, one in self.checkpoints if name == namespace)
            missing: set[str] | None = None
            while current and (body := self.checkpoints.get((namespace, current))):
                kept |= self._needed(body)
                versions = body["checkpoint"].get("channel_versions", {})
                if missing is None:
                    missing = set(versions)
                missing -= dict(self._values(body)).keys()
                # A channel that has never had a value needs no other checkpoint either.
                missing -= {
                    name for name, one in versions.items() if self._is_empty(namespace, name, one)
                }
                if not missing:
                    break
                current = body["parent"]
        return kept

    def without_runs(self, runs: set[str]) -> set[str]:
        """Returns the keys of what other runs need."""
        others = [
            body for body in self.checkpoints.values() if body["metadata"].get("run_id") not in runs
        ]
        return {name for body in others for name in self._needed(body)}

    def _needed(self, body: Mapping[str, Any]) -> set[str]:
        namespace = body["namespace"]
        versions = body["checkpoint"].get("channel_versions", {})
        names = {key("blob", namespace, *one) for one in versions.items()}
        return {key("checkpoint", namespace, body["id"]), *names}

    def _is_empty(self, namespace: str, channel: str, version: Any) -> bool:
        """Returns whether a channel has no value because it is empty."""
        record = self._blobs.get(key("blob", namespace, channel, version))
        return record is not None and bool(json.loads(record.head["form"])["empty"])

    def _values(self, body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for channel, version in body["checkpoint"].get("channel_versions", {}).items():
            record = self._blobs.get(key("blob", body["namespace"], channel, version))
            if record is None or json.loads(record.head["form"])["empty"]:
                continue
            with suppress(KeyError):
                yield channel, self._saver._body(record)["value"]


def _config(thread: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": thread,
            "checkpoint_ns": namespace,
            "checkpoint_id": checkpoint_id,
        }
    }
