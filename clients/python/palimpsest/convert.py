"""From the proto's messages to the client's values, and the chunk's digest."""

import hashlib
import json
import struct

from palimpsest import specs, tree_values, values
from palimpsest.answer_convert import answer as answer
from palimpsest.answer_convert import losses as losses
from palimpsest.answer_convert import moment as moment
from palimpsest.answer_convert import navigation_statistics as navigation_statistics
from palimpsest.answer_convert import usage as usage
from palimpsest.v1 import (
    history_pb2,
    log_pb2,
    memories_pb2,
    schemas_pb2,
    sessions_pb2,
    trees_pb2,
    usage_pb2,
)


def digest(chunk: log_pb2.Chunk) -> bytes:
    """SHA-256 of a chunk's content, 32 bytes, as docs/guides/appending.md defines it."""
    kind = chunk.WhichOneof("content") or ""
    parts = ["", "", "", "", ""]
    if kind == "text":
        parts[1] = chunk.text
    elif kind == "message":
        parts[0], parts[1] = chunk.message.role, chunk.message.text
    else:
        step = chunk.step
        parts[2:] = step.observation, step.thought, step.action
    pieces: list[bytes] = []
    for part in (kind, *parts):
        raw = part.encode()
        pieces += (struct.pack(">Q", len(raw)), raw)
    pieces.append(struct.pack(">Q", len(chunk.metadata)))
    for key in sorted(chunk.metadata):
        for part in (key, chunk.metadata[key]):
            raw = part.encode()
            pieces += (struct.pack(">Q", len(raw)), raw)
    if chunk.step.observed_first:
        pieces.append(b"\x01")
    return hashlib.sha256(b"".join(pieces)).digest()


def size_bytes(chunk: log_pb2.Chunk) -> int:
    """Size of a chunk's content and metadata, in bytes of UTF-8: what counts in credits."""
    size = _content_bytes(chunk)
    if chunk.metadata:
        size += sum(len(one.encode()) for pair in chunk.metadata.items() for one in pair)
    return size


def _content_bytes(chunk: log_pb2.Chunk) -> int:
    kind = chunk.WhichOneof("content")
    if kind == "text":
        return len(chunk.text.encode())
    if kind == "message":
        return len(chunk.message.role.encode()) + len(chunk.message.text.encode())
    step = chunk.step
    return sum(len(part.encode()) for part in (step.observation, step.thought, step.action))


def session(message: sessions_pb2.Session) -> values.SessionInfo:
    """A session."""
    return values.SessionInfo(
        name=message.name,
        head=message.head,
        content_bytes=message.content_bytes,
        created_at=moment(message.create_time),
        language=message.language,
    )


def chunk(message: log_pb2.LoggedChunk) -> values.Chunk:
    """A chunk of the log."""
    content = message.chunk
    kind = content.WhichOneof("content") or ""
    text = content.message.text if kind == "message" else content.text
    is_said = kind != "step" or content.step.HasField("observed_first")
    return values.Chunk(
        position=message.position,
        kind=kind,
        text=text,
        role=content.message.role,
        observation=content.step.observation,
        thought=content.step.thought,
        action=content.step.action,
        observed_first=content.step.observed_first if is_said else None,
        metadata=dict(content.metadata),
        producer_id=message.producer_id,
        producer_sequence=message.producer_sequence,
        created_at=moment(message.create_time),
    )


def ack(message: log_pb2.Ack) -> values.Ack:
    """An ack."""
    return values.Ack(
        producer_sequence=message.through_producer_sequence,
        position=message.through_position,
        token=message.token,
    )


_MEMORY_STATUS = {
    memories_pb2.Memory.STATUS_STALLED: values.MemoryStatus.STALLED,
    memories_pb2.Memory.STATUS_SEALED: values.MemoryStatus.SEALED,
}


def memory(message: memories_pb2.Memory) -> values.MemoryInfo:
    """A memory."""
    stalled = message.status == memories_pb2.Memory.STATUS_STALLED
    kind: values.MemoryKind = message.WhichOneof("spec") or "prism"
    stall, prism = message.stall, message.prism
    wanted = message.HasField("consolidate_position")
    return values.MemoryInfo(
        session=message.session,
        name=message.name,
        kind=kind,
        tree=specs.tree_settings(message.tree) if kind == "tree" else None,
        state=specs.state_settings(message.state) if kind == "state" else None,
        schema_source=prism.schema_source,
        task=prism.task,
        question=prism.question,
        final_task=prism.final_task,
        steps=specs.name_of(specs.STEPS, prism.steps),
        model=prism.model,
        encoding=specs.name_of(specs.ENCODINGS, prism.encoding),
        operations=specs.name_of(specs.OPERATIONS, prism.operations),
        coercion=specs.name_of(specs.COERCIONS, prism.coercion),
        reply_format=specs.name_of(specs.REPLY_FORMATS, prism.reply_format),
        chunk_tokens=prism.chunk_tokens,
        fold_tokens=prism.fold_tokens,
        memory_tokens=prism.memory_tokens,
        linger_seconds=prism.linger.ToMilliseconds() / 1000 if prism.HasField("linger") else None,
        skip_failures=prism.on_failure == memories_pb2.PrismSpec.ON_FAILURE_SKIP,
        revision=message.revision,
        applied_position=message.applied_position,
        head=message.head,
        status=_MEMORY_STATUS.get(message.status, values.MemoryStatus.ACTIVE),
        stall=values.Stall(position=stall.position, cause=stall.cause, attempts=stall.attempts)
        if stalled
        else None,
        rebuilt_from=message.rebuilt_from,
        consolidate_position=message.consolidate_position if wanted else None,
        seal_position=message.seal_position if message.HasField("seal_position") else None,
        held_reason=message.held_reason if message.HasField("held_reason") else None,
        waiting_cause=message.waiting_cause if message.HasField("waiting_cause") else None,
        resting=message.resting,
        created_at=moment(message.create_time),
        losses=losses(message.losses),
    )


def state(message: memories_pb2.GetMemoryResponse) -> values.MemoryState:
    """A memory's value."""
    return values.MemoryState(
        info=memory(message.memory),
        value=json.loads(message.value_json),
        revision=message.revision,
        applied_position=message.applied_position,
        token=message.token,
    )


_OPS: dict[int, values.Op] = {
    memories_pb2.AMENDMENT_OP_ADD: "add",
    memories_pb2.AMENDMENT_OP_UPDATE: "update",
    memories_pb2.AMENDMENT_OP_REMOVE: "remove",
}
_KINDS: dict[int, values.RevisionKind] = {
    memories_pb2.REVISION_KIND_CREATE: "create",
    memories_pb2.REVISION_KIND_STEP: "step",
    memories_pb2.REVISION_KIND_SKIP: "skip",
    memories_pb2.REVISION_KIND_FOLD: "fold",
    memories_pb2.REVISION_KIND_EDIT: "edit",
    memories_pb2.REVISION_KIND_ROLLBACK: "rollback",
    memories_pb2.REVISION_KIND_CONSOLIDATION: "consolidation",
    memories_pb2.REVISION_KIND_SCHEMA: "schema",
    memories_pb2.REVISION_KIND_BUILD: "build",
    memories_pb2.REVISION_KIND_SEAL: "seal",
    memories_pb2.REVISION_KIND_EPISODE: "episode",
}


def amendment(message: memories_pb2.Amendment) -> values.Amendment:
    """An amendment."""
    return values.Amendment(
        revision=message.revision,
        ordinal=message.ordinal,
        from_position=message.from_position,
        to_position=message.to_position,
        op=_OPS.get(message.op, "unknown"),
        path=message.path,
        value=json.loads(message.value_json),
        op_corrected=message.op_corrected,
        kind=_KINDS.get(message.kind, "unknown"),
        created_at=moment(message.create_time),
    )


def rejection(message: memories_pb2.Rejection) -> values.Rejection:
    """A rejection."""
    return values.Rejection(
        revision=message.revision,
        ordinal=message.ordinal,
        from_position=message.from_position,
        to_position=message.to_position,
        proposal=message.proposal,
        reason=message.reason,
        created_at=moment(message.create_time),
    )


def revision(message: history_pb2.Revision) -> values.Revision:
    """A revision."""
    restored = message.HasField("restored_revision")
    return values.Revision(
        revision=message.revision,
        kind=_KINDS.get(message.kind, "unknown"),
        from_position=message.from_position,
        to_position=message.to_position,
        comment=message.comment,
        restored_revision=message.restored_revision if restored else None,
        schema_source=message.schema_source,
        amendments=message.amendments,
        rejections=message.rejections,
        value_digest=message.value_digest,
        created_at=moment(message.create_time),
    )


def committed(message: history_pb2.WatchMemoryResponse) -> values.Committed:
    """A revision that a watch tells."""
    told = message.committed
    return values.Committed(
        revision=revision(told.revision),
        amendments=tuple(amendment(one) for one in told.amendments),
        amendments_truncated=told.amendments_truncated,
        resume_token=message.resume_token,
    )


def provenance_entry(message: history_pb2.ProvenanceEntry) -> values.ProvenanceEntry:
    """An amendment with what it was made from."""
    return values.ProvenanceEntry(
        amendment=amendment(message.amendment),
        revision=revision(message.revision),
        in_effect=message.in_effect,
        origin=message.origin,
        best_position=message.best_position,
        chunks=tuple(chunk(one) for one in message.chunks),
        chunks_truncated=message.chunks_truncated,
    )


def difference(message: history_pb2.Difference) -> values.Difference:
    """A place where two states differ."""
    was, there = message.HasField("old_json"), message.HasField("new_json")
    return values.Difference(
        op="update" if was and there else "remove" if was else "add",
        path=message.path,
        old=json.loads(message.old_json) if was else None,
        new=json.loads(message.new_json) if there else None,
    )


def flushed(message: memories_pb2.FlushResponse) -> values.Flushed:
    """What was flushed."""
    return values.Flushed(token=message.token, head=message.head)


def usage_report(message: usage_pb2.GetUsageResponse) -> values.UsageReport:
    """What a session's or a memory's model calls came to."""
    return values.UsageReport(
        total=usage(message.total),
        lines=tuple(
            values.UsageLine(purpose=line.purpose, model=line.model, usage=usage(line.usage))
            for line in message.lines
        ),
    )


_DRAFT_STATUS = {
    schemas_pb2.SchemaDraft.STATUS_PENDING: "pending",
    schemas_pb2.SchemaDraft.STATUS_COMPLETE: "complete",
    schemas_pb2.SchemaDraft.STATUS_FAILED: "failed",
}


def schema_draft(message: schemas_pb2.SchemaDraft) -> values.SchemaDraft:
    """A schema that was asked for."""
    return values.SchemaDraft(
        draft_id=message.draft_id,
        domain=message.domain,
        example_query=message.example_query,
        status=_DRAFT_STATUS.get(message.status, "unknown"),
        schema_source=message.schema_source,
        model=message.model,
        attempts=message.attempts,
        failure=message.failure,
        usage=usage(message.usage),
        created_at=moment(message.create_time),
    )


_MADE: dict[int, tree_values.Made] = {
    trees_pb2.TreeNode.MADE_MODEL: "model",
    trees_pb2.TreeNode.MADE_JOINED: "joined",
    trees_pb2.TreeNode.MADE_CUT: "cut",
    trees_pb2.TreeNode.MADE_SKIPPED: "skipped",
}


def tree_node(message: trees_pb2.TreeNode) -> tree_values.TreeNode:
    """A node of a tree."""
    return tree_values.TreeNode(
        node_id=message.node_id,
        level=message.level,
        number=message.number,
        parent_id=message.parent_id,
        child_ids=tuple(message.child_ids),
        from_position=message.from_position,
        from_offset=message.from_offset,
        to_position=message.to_position,
        to_offset=message.to_offset,
        summary=message.summary,
        made=_MADE.get(message.made, "unknown"),
        text_tokens=message.text_tokens,
        summary_tokens=message.summary_tokens,
        revision=message.revision,
        created_at=moment(message.create_time),
    )


def tree_outline(message: trees_pb2.GetTreeResponse) -> values.TreeOutline:
    """The outline of a tree."""
    tail = message.tail
    return values.TreeOutline(
        info=memory(message.memory),
        revision=message.revision,
        applied_position=message.applied_position,
        levels=tuple(
            tree_values.TreeLevel(level=one.level, nodes=one.nodes) for one in message.levels
        ),
        tops=tuple(tree_node(one) for one in message.tops),
        tail=tree_values.TreeTail(
            from_position=tail.from_position,
            from_offset=tail.from_offset,
            to_position=tail.to_position,
        )
        if message.HasField("tail")
        else None,
    )


def text_part(message: trees_pb2.GetNodeTextResponse.Part) -> tree_values.TextPart:
    """A part of the text under a node."""
    return tree_values.TextPart(
        position=message.position,
        from_offset=message.from_offset,
        to_offset=message.to_offset,
        text=message.text,
    )
