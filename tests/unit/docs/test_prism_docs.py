"""The figures that the guide to PRISM memories gives are those of the code."""

import re

from buf.validate import validate_pb2

from palimpsest.v1 import memory_service_pb2
from service.domain.prism.amendments import Rules
from service.domain.prism.revisions import MAX_PROPOSALS
from service.domain.prism.spec import MEMORY_TOKENS, PrismSpec, default_fold_tokens
from service.domain.prompting.replies import MAX_REVISION_CHARACTERS
from service.domain.values.json_values import MAX_NODES, MAX_NUMBER_CHARACTERS
from service.domain.values.paths import MAX_KEY_CHARACTERS, MAX_PATH_CHARACTERS, MAX_PATH_DEPTH
from service.rpc.convert.specs import DEFAULT_CHUNK_TOKENS
from service.settings.config import Config, Limits
from tests.support.guides import section

PAGE = section("prism", "How a PRISM memory works")


def default_fields() -> list[str]:
    """Returns the fields of the default memory that the guide has."""
    return re.findall(r"^\| `(\w+)` \|", section("prism", "The default memory"), re.MULTILINE)


def cells() -> dict[str, str]:
    rows = re.findall(r"^\| (.+?) \| (.+?) \|", PAGE, re.MULTILINE)
    return {name.strip("`"): value for name, value in rows}


def test_the_limits_are_those_of_the_code() -> None:
    rules, limits = Rules(), Limits()
    assert rules.max_memory_bytes == limits.max_memory_bytes == 1024 * 1024
    edits = memory_service_pb2.EditMemoryRequest.DESCRIPTOR.fields_by_name["edits"]
    most = edits.GetOptions().Extensions[validate_pb2.field].repeated.max_items
    said = cells()
    assert said["a memory, as canonical JSON"].startswith("1 MiB")
    assert said["the value of an amendment, as canonical JSON"] == (
        f"{rules.max_value_bytes // 1024} KiB"
    )
    assert said["lists, dicts and records within one another"] == f"{rules.max_depth} levels"
    assert said["entries of a list or a dict"] == f"{rules.max_breadth:,}"
    assert said["parts of a value, digits of a number"] == (
        f"{MAX_NODES:,} and {MAX_NUMBER_CHARACTERS}"
    )
    assert said["a path"] == f"{MAX_PATH_CHARACTERS:,} characters, {MAX_PATH_DEPTH} steps"
    assert said["a key"] == f"{MAX_KEY_CHARACTERS} characters"
    assert said["a reply of the model"] == (
        f"{MAX_REVISION_CHARACTERS:,} characters, {MAX_PROPOSALS} proposals"
    )
    assert said["edits of one request"] == str(most)
    assert said["memories of a session"].startswith(f"{limits.max_memories} ")


def test_the_defaults_are_those_of_the_code() -> None:
    said, spec = cells(), PrismSpec(schema_source="class A: ...")
    assert said["chunk_tokens"] == f"{spec.chunk_tokens:,}" == f"{DEFAULT_CHUNK_TOKENS:,}"
    assert (
        said["fold_tokens"] == f"{spec.fold_tokens:,}" == f"{default_fold_tokens(spec.encoding):,}"
    )
    assert said["memory_tokens"] == f"{MEMORY_TOKENS:,}"
    seconds = f"{Config().message_linger_seconds:g}"
    assert said["linger"] == f"{seconds} s for messages"
    assert f"(`PALIMPSEST_MESSAGE_LINGER_SECONDS`, {seconds};" in PAGE
    assert f"`PALIMPSEST_SMALL_TALK_TOKENS` ({Config().small_talk_tokens})" in PAGE
    longest = f"{Config().small_talk_linger_seconds:g}"
    assert f"`PALIMPSEST_SMALL_TALK_LINGER_SECONDS` ({longest})" in PAGE
    for name in ("encoding", "operations", "coercion", "reply_format"):
        assert said[name] == f"`{getattr(spec, name).value}`"
