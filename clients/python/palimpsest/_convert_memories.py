"""Memories of all kinds, their settings and history, to and from the proto's messages."""

import json
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from palimpsest._convert import (
    if_set,
    known_name,
    message_of,
    milliseconds,
    moment,
    name_of,
    value_of,
)
from palimpsest._convert import number_of as _number_of
from palimpsest._convert_answers import losses
from palimpsest._convert_chunks import logged_chunk
from palimpsest._convert_spend import usage
from palimpsest._schemas import Schema, schema_fields
from palimpsest._values_memories import (
    Amendment,
    ChatMessage,
    Coercion,
    Committed,
    ContextForm,
    Diff,
    Difference,
    Edit,
    Edited,
    Encoding,
    Flushed,
    Folded,
    Freshness,
    Made,
    MemoryInfo,
    MemoryKind,
    MemoryState,
    MemoryStatus,
    Op,
    Operations,
    ProvenanceEntry,
    RecentStep,
    Rejection,
    ReplyFormat,
    Revision,
    RevisionKind,
    SchemaDraft,
    Stall,
    StatePeriod,
    StateSettings,
    StateVector,
    Steps,
    TextPart,
    TreeLevel,
    TreeNode,
    TreeOutline,
    TreeSettings,
    TreeTail,
    VectorMade,
    WorkingContext,
    WorkingMemory,
)
from palimpsest.v1alpha1 import (
    edits_pb2,
    history_pb2,
    memories_pb2,
    reading_pb2,
    schemas_pb2,
    states_pb2,
    trees_pb2,
)

_Spec = memories_pb2.PrismSpec
_Tree = memories_pb2.TreeSpec
_State = memories_pb2.StateSpec
_Context = states_pb2.GetWorkingContextRequest

#: What an enumerated setting may be, and what the proto calls it.
ENCODINGS: dict[Encoding, Any] = {
    "adaptive": _Spec.ENCODING_ADAPTIVE,
    "amendments": _Spec.ENCODING_AMENDMENTS,
    "in_place": _Spec.ENCODING_IN_PLACE,
}
OPERATIONS: dict[Operations, Any] = {
    "add_and_update": _Spec.OPERATIONS_ADD_AND_UPDATE,
    "add_only": _Spec.OPERATIONS_ADD_ONLY,
}
COERCIONS: dict[Coercion, Any] = {
    "refuse": _Spec.COERCION_REFUSE,
    "lossless": _Spec.COERCION_LOSSLESS,
}
REPLY_FORMATS: dict[ReplyFormat, Any] = {
    "auto": _Spec.REPLY_FORMAT_UNSPECIFIED,
    "text": _Spec.REPLY_FORMAT_TEXT,
    "structured": _Spec.REPLY_FORMAT_STRUCTURED,
}
STEPS: dict[Steps, Any] = {
    "whole": _Spec.STEPS_WHOLE,
    "focused": _Spec.STEPS_FOCUSED,
}
WORKING_MEMORIES: dict[WorkingMemory, Any] = {
    "cut": _Tree.WORKING_MEMORY_CUT,
    "off": _Tree.WORKING_MEMORY_OFF,
    "summarized": _Tree.WORKING_MEMORY_SUMMARIZED,
}
PERIODS: dict[StatePeriod, Any] = {
    "fixed": _State.PERIOD_FIXED,
    "adaptive": _State.PERIOD_ADAPTIVE,
}
FRESHNESS: dict[Freshness, Any] = {
    "latest": _Context.FRESHNESS_LATEST,
    "wait": _Context.FRESHNESS_WAIT,
}
FORMS: dict[ContextForm, Any] = {
    "parts": _Context.FORM_PARTS,
    "text": _Context.FORM_TEXT,
    "messages": _Context.FORM_MESSAGES,
}


_TABLES: dict[str, Mapping[Any, Any]] = {
    "encoding": ENCODINGS,
    "operations": OPERATIONS,
    "coercion": COERCIONS,
    "reply_format": REPLY_FORMATS,
    "steps": STEPS,
    "working_memory": WORKING_MEMORIES,
    "period_kind": PERIODS,
    "freshness": FRESHNESS,
    "form": FORMS,
}


def number_of(setting: str, given: object) -> Any:
    """Returns what the proto calls a setting's value. Raises ValueError."""
    return _number_of(setting, _TABLES[setting], given)


def consistency(after: str, fully_applied: bool) -> reading_pb2.ReadConsistency | None:
    """Returns how fresh what is read must be; None when the caller does not say."""
    if fully_applied:
        return reading_pb2.ReadConsistency(fully_applied=True)
    return reading_pb2.ReadConsistency(at_least=after) if after else None


def _on_failure(skip_failures: bool) -> Any:
    return _Spec.ON_FAILURE_SKIP if skip_failures else _Spec.ON_FAILURE_STALL


def prism_spec(
    schema: Schema,
    *,
    choices: Mapping[str, str | None],
    linger: float | timedelta | None,
    skip_failures: bool,
    **rest: Any,
) -> memories_pb2.PrismSpec:
    """A spec; None among `choices` is the service's to choose. Raises ValueError."""
    fields: dict[str, Any] = {
        name: number_of(name, given) for name, given in choices.items() if given is not None
    }
    fields |= schema_fields(schema)
    message = _Spec(
        **fields,
        on_failure=_on_failure(skip_failures),
        **rest,
    )
    if linger is not None:
        message.linger.FromMilliseconds(milliseconds(linger, "linger"))
    return message


#: Settings that are the same with the proto.
_PLAIN_PRISM = (
    "schema_source",
    "task",
    "question",
    "final_task",
    "model",
    "chunk_tokens",
    "fold_tokens",
    "memory_tokens",
)
_PLAIN_TREE = (
    "segment_tokens",
    "max_children",
    "summary_tokens",
    "working_memory_tokens",
    "model",
    "navigation_model",
)


def tree_spec(settings: TreeSettings) -> memories_pb2.TreeSpec:
    """The spec of a tree. Raises ValueError."""
    return _Tree(
        reasoning=_Tree.REASONING_ON if settings.reasoning else _Tree.REASONING_OFF,
        working_memory=number_of("working_memory", settings.working_memory),
        reply_format=number_of("reply_format", settings.reply_format),
        on_failure=_on_failure(settings.skip_failures),
        **{name: getattr(settings, name) for name in _PLAIN_TREE},
    )


def tree_settings(message: memories_pb2.TreeSpec) -> TreeSettings:
    """The settings of a tree."""
    return TreeSettings(
        reasoning=message.reasoning != _Tree.REASONING_OFF,
        working_memory=name_of(WORKING_MEMORIES, message.working_memory),
        reply_format=name_of(REPLY_FORMATS, message.reply_format),
        skip_failures=message.on_failure == _Spec.ON_FAILURE_SKIP,
        **{name: getattr(message, name) for name in _PLAIN_TREE},
    )


_PLAIN_STATE = ("task", "period", "state_tokens", "episode_vectors", "model")


def state_spec(settings: StateSettings) -> memories_pb2.StateSpec:
    """The spec of a state memory. Raises TypeError and ValueError."""
    message = message_of(
        _State,
        period_kind=number_of("period_kind", settings.period_kind),
        period_tokens=settings.period_tokens,
        pinned=settings.pinned,
        reply_format=number_of("reply_format", settings.reply_format),
        on_failure=_on_failure(settings.skip_failures),
        **{name: getattr(settings, name) for name in _PLAIN_STATE},
    )
    if settings.idle_seconds:
        message.idle.FromMilliseconds(milliseconds(settings.idle_seconds, "idle_seconds"))
    return message


def state_settings_of(**given: Any) -> StateSettings:
    """Returns the settings of a state memory. Raises ValueError for one string of `pinned`."""
    pinned = given.get("pinned", ())
    if isinstance(pinned, str):
        # Each of its letters would be pinned.
        raise ValueError("pinned must be a sequence of strings, not one string")
    return StateSettings(**{**given, "pinned": tuple(pinned)})


def state_settings(message: memories_pb2.StateSpec) -> StateSettings:
    """The settings of a state memory."""
    return StateSettings(
        period_kind=name_of(PERIODS, message.period_kind),
        period_tokens=message.period_tokens if message.HasField("period_tokens") else None,
        idle_seconds=message.idle.ToMilliseconds() / 1000,
        pinned=tuple(message.pinned),
        reply_format=name_of(REPLY_FORMATS, message.reply_format),
        skip_failures=message.on_failure == _Spec.ON_FAILURE_SKIP,
        **{name: getattr(message, name) for name in _PLAIN_STATE},
    )


def rebuild_request(
    session: str, memory: str, new_memory: str, changes: Mapping[str, Any]
) -> edits_pb2.RebuildMemoryRequest:
    """Returns the request; None among `changes` takes over what the old memory has.

    Raises ValueError.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    if "schema" in given:
        given |= schema_fields(given.pop("schema"))
    for name in ("encoding", "operations", "steps"):
        if name in given:
            given[name] = number_of(name, given[name])
    return edits_pb2.RebuildMemoryRequest(
        session=session, memory=memory, new_memory=new_memory, **given
    )


_EDIT_OPS: dict[str, Any] = {
    "put": memories_pb2.AMENDMENT_OP_UNSPECIFIED,
    "add": memories_pb2.AMENDMENT_OP_ADD,
    "update": memories_pb2.AMENDMENT_OP_UPDATE,
    "remove": memories_pb2.AMENDMENT_OP_REMOVE,
}


def edit_message(edit: Edit) -> edits_pb2.Edit:
    """Returns an edit as the proto has it. Raises ValueError for a value that is no JSON."""
    message = edits_pb2.Edit(op=_EDIT_OPS[edit.op], path=edit.path)
    if edit.op != "remove":
        try:
            _check_keys(edit.value)
            message.value_json = json.dumps(edit.value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the value for {edit.path} is no JSON: {error}") from error
    return message


def _check_keys(value: Any) -> None:
    """Refuses keys that `json` would turn into texts: two of them could become one."""
    if isinstance(value, dict):
        for key, child in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is no text")
            _check_keys(child)
    elif isinstance(value, list | tuple):
        for child in value:
            _check_keys(child)


_STATUSES: dict[MemoryStatus, Any] = {
    MemoryStatus.ACTIVE: memories_pb2.Memory.STATUS_ACTIVE,
    MemoryStatus.STALLED: memories_pb2.Memory.STATUS_STALLED,
    MemoryStatus.SEALED: memories_pb2.Memory.STATUS_SEALED,
}


def memory(message: memories_pb2.Memory) -> MemoryInfo:
    """Returns a memory."""
    kind: MemoryKind = message.WhichOneof("spec") or "prism"
    prism = message.prism
    is_stalled = message.status == memories_pb2.Memory.STATUS_STALLED
    return value_of(
        MemoryInfo,
        message,
        kind=kind,
        tree=tree_settings(message.tree) if kind == "tree" else None,
        state=state_settings(message.state) if kind == "state" else None,
        **{name: getattr(prism, name) for name in _PLAIN_PRISM},
        steps=name_of(STEPS, prism.steps),
        encoding=name_of(ENCODINGS, prism.encoding),
        operations=name_of(OPERATIONS, prism.operations),
        coercion=name_of(COERCIONS, prism.coercion),
        reply_format=name_of(REPLY_FORMATS, prism.reply_format),
        linger_seconds=if_set(prism, "linger", lambda linger: linger.ToMilliseconds() / 1000),
        skip_failures=prism.on_failure == _Spec.ON_FAILURE_SKIP,
        status=name_of(_STATUSES, message.status),
        stall=value_of(Stall, message.stall) if is_stalled else None,
        created_at=moment(message.create_time),
        losses=losses(message.losses),
    )


def memory_state(message: memories_pb2.GetMemoryResponse) -> MemoryState:
    """Returns a memory's value."""
    return value_of(
        MemoryState, message, info=memory(message.memory), value=json.loads(message.value_json)
    )


_OPS: dict[Op, Any] = {
    "add": memories_pb2.AMENDMENT_OP_ADD,
    "update": memories_pb2.AMENDMENT_OP_UPDATE,
    "remove": memories_pb2.AMENDMENT_OP_REMOVE,
}
_KINDS: dict[RevisionKind, Any] = {
    "create": memories_pb2.REVISION_KIND_CREATE,
    "step": memories_pb2.REVISION_KIND_STEP,
    "skip": memories_pb2.REVISION_KIND_SKIP,
    "fold": memories_pb2.REVISION_KIND_FOLD,
    "edit": memories_pb2.REVISION_KIND_EDIT,
    "rollback": memories_pb2.REVISION_KIND_ROLLBACK,
    "consolidation": memories_pb2.REVISION_KIND_CONSOLIDATION,
    "schema": memories_pb2.REVISION_KIND_SCHEMA,
    "build": memories_pb2.REVISION_KIND_BUILD,
    "seal": memories_pb2.REVISION_KIND_SEAL,
    "episode": memories_pb2.REVISION_KIND_EPISODE,
}


def amendment(message: memories_pb2.Amendment) -> Amendment:
    """Returns an amendment."""
    return value_of(
        Amendment,
        message,
        op=known_name(_OPS, message.op),
        value=json.loads(message.value_json),
        kind=known_name(_KINDS, message.kind),
        created_at=moment(message.create_time),
    )


def rejection(message: memories_pb2.Rejection) -> Rejection:
    """Returns a rejection."""
    return value_of(Rejection, message, created_at=moment(message.create_time))


def revision(message: history_pb2.Revision) -> Revision:
    """Returns a revision."""
    return value_of(
        Revision,
        message,
        kind=known_name(_KINDS, message.kind),
        created_at=moment(message.create_time),
    )


def committed(message: history_pb2.WatchMemoryResponse) -> Committed:
    """Returns a revision as a watch yields it."""
    return value_of(
        Committed,
        message.committed,
        revision=revision(message.committed.revision),
        amendments=tuple(amendment(one) for one in message.committed.amendments),
        resume_token=message.resume_token,
    )


def provenance_entry(message: history_pb2.ProvenanceEntry) -> ProvenanceEntry:
    """Returns an amendment with what it was made from."""
    return value_of(
        ProvenanceEntry,
        message,
        amendment=amendment(message.amendment),
        revision=revision(message.revision),
        chunks=tuple(logged_chunk(one) for one in message.chunks),
    )


def diff(pages: list[history_pb2.DiffMemoriesResponse]) -> Diff:
    """Returns where two states differ, from all pages of a list."""
    return Diff(
        revision=pages[-1].revision,
        other_revision=pages[-1].other_revision,
        differences=tuple(_difference(one) for page in pages for one in page.differences),
    )


def _difference(message: history_pb2.Difference) -> Difference:
    was, is_there = message.HasField("old_json"), message.HasField("new_json")
    return Difference(
        op="update" if was and is_there else "remove" if was else "add",
        path=message.path,
        old=json.loads(message.old_json) if was else None,
        new=json.loads(message.new_json) if is_there else None,
    )


def edited(message: edits_pb2.ReviseMemoryResponse) -> Edited:
    """Returns what edits changed."""
    amendments = tuple(amendment(one) for one in message.amendments)
    return Edited(info=memory(message.memory), amendments=amendments)


def folded(message: edits_pb2.FoldMemoryResponse) -> Folded:
    """Returns what a fold changed."""
    return Folded(info=memory(message.memory), folded=message.folded)


def flushed(message: memories_pb2.FlushResponse) -> Flushed:
    """Returns the log as it was when the wait for more chunks ended."""
    return value_of(Flushed, message)


_DRAFT_STATUSES = {
    "pending": schemas_pb2.SchemaDraft.STATUS_PENDING,
    "complete": schemas_pb2.SchemaDraft.STATUS_COMPLETE,
    "failed": schemas_pb2.SchemaDraft.STATUS_FAILED,
}


def schema_draft(message: schemas_pb2.SchemaDraft) -> SchemaDraft:
    """Returns a schema that a model was asked to write."""
    return value_of(
        SchemaDraft,
        message,
        status=known_name(_DRAFT_STATUSES, message.status),
        usage=usage(message.usage),
        created_at=moment(message.create_time),
    )


_MADE: dict[Made, Any] = {
    "model": trees_pb2.TreeNode.MADE_MODEL,
    "joined": trees_pb2.TreeNode.MADE_JOINED,
    "cut": trees_pb2.TreeNode.MADE_CUT,
    "skipped": trees_pb2.TreeNode.MADE_SKIPPED,
}
_VECTORS_MADE: dict[VectorMade, Any] = {
    "task": states_pb2.StateVector.MADE_TASK,
    "model": states_pb2.StateVector.MADE_MODEL,
    "cut": states_pb2.StateVector.MADE_CUT,
    "skipped": states_pb2.StateVector.MADE_SKIPPED,
}


def tree_node(message: trees_pb2.TreeNode) -> TreeNode:
    """Returns a node of a tree."""
    return value_of(
        TreeNode,
        message,
        made=known_name(_MADE, message.made),
        created_at=moment(message.create_time),
    )


def tree_outline(message: trees_pb2.GetTreeResponse) -> TreeOutline:
    """Returns the outline of a tree."""
    return value_of(
        TreeOutline,
        message,
        info=memory(message.memory),
        levels=tuple(value_of(TreeLevel, one) for one in message.levels),
        tops=tuple(tree_node(one) for one in message.tops),
        tail=if_set(message, "tail", lambda tail: value_of(TreeTail, tail)),
    )


def text_part(message: trees_pb2.GetNodeTextResponse.Part) -> TextPart:
    """Returns a part of the text under a node."""
    return value_of(TextPart, message)


def state_vector(message: states_pb2.StateVector, created: Timestamp | None = None) -> StateVector:
    """Returns a state vector, and when it was committed."""
    return value_of(
        StateVector,
        message,
        made=known_name(_VECTORS_MADE, message.made),
        created_at=None if created is None else moment(created),
    )


def working_context(message: states_pb2.GetWorkingContextResponse) -> WorkingContext:
    """Returns a working context."""
    return value_of(
        WorkingContext,
        message,
        vectors=tuple(state_vector(one) for one in message.vectors),
        recent=tuple(
            RecentStep(chunk=logged_chunk(one.chunk), tokens=one.tokens) for one in message.recent
        ),
        messages=tuple(value_of(ChatMessage, one) for one in message.messages),
    )


#: Settings whose name is another one in the proto.
_RENAMED = {"linger": "linger_seconds", "idle": "idle_seconds", "on_failure": "skip_failures"}


def settings_that_differ(
    wanted: memories_pb2.CreateMemoryRequest,
    existing: memories_pb2.Memory,
    schema_source: str,
    only: Collection[str] | None = None,
) -> list[str]:
    """Returns in words what an existing memory has other than it is wanted.

    What the request leaves to the service is not compared, and of the rest `only` these
    settings. `schema_source` is the wanted schema as the service keeps it.
    """
    kind, there = wanted.WhichOneof("spec") or "prism", existing.WhichOneof("spec")
    if there != kind:
        return [f"is a {there} memory, not a {kind} memory"]
    spec = getattr(wanted, kind)
    new, old = _settings(memories_pb2.Memory(**{kind: spec})), _settings(existing)
    found = []
    for field, _ in spec.ListFields():
        if field.name in ("schema_source", "json_schema"):
            if schema_source != old.schema_source:
                found.append("its schema is another one")
            continue
        name = _RENAMED.get(field.name, field.name)
        asked, has = getattr(new, name), getattr(old, name)
        if asked != has and (only is None or name in only):
            found.append(f"{name} is {has!r}, not {asked!r}")
    return found


def _settings(message: memories_pb2.Memory) -> Any:
    info = memory(message)
    return info.tree or info.state or info
