"""The figures that the guide to agents gives are those of the code."""

import math
import re
from typing import Any

import pytest
from buf.validate import validate_pb2

import palimpsest
from palimpsest import AgentSettings
from palimpsest._async._agent import WAIT_SECONDS
from palimpsest.v1 import memories_pb2
from service.cli.kinds import state as options
from service.domain.state.spec import ADAPTIVE_SPAN, PINNED_SHARE, StateSpec
from service.domain.state.triggers import NEW_VECTORS
from service.rpc.convert.specs import state_message, state_spec
from service.rpc.pages import MAX_PAGE_SIZE
from service.settings.config import Limits
from storage.log.ends import CHUNK_BYTES
from tests import ROOT

PAGE = (ROOT / "docs" / "guides" / "agents.md").read_text()
SPEC = memories_pb2.StateSpec.DESCRIPTOR.fields_by_name


def rows() -> dict[str, list[str]]:
    found = (re.split(r" \| ", line.strip("| ")) for line in PAGE.splitlines() if line[:2] == "| ")
    return {name.strip("`"): rest for name, *rest in found}


def rule(name: str) -> Any:
    return SPEC[name].GetOptions().Extensions[validate_pb2.field]


def test_the_settings_are_those_of_a_state_memory() -> None:
    said, defaults = rows(), StateSpec()
    names = set(palimpsest.StateSettings.__dataclass_fields__)
    assert names <= set(said)
    assert names == set(AgentSettings.__annotations__)
    for name in ("period", "state_tokens", "episode_vectors"):
        assert said[name][0] == f"{getattr(defaults, name):,}"
    made = state_spec(memories_pb2.StateSpec())
    assert said["period_tokens"][0] == f"{made.period_tokens:,}"
    assert f"1 to {rule('period_tokens').int32.lte:,}" in said["period_tokens"][1]
    for name in ("state_tokens", "episode_vectors"):
        least, most = re.findall(r"\d+", rule(name).cel[0].message)[-2:]
        assert f"{least} to {int(most):,}" in said[name][1]
    assert f"1 to {rule('period').int32.lte:,}" in said["period"][1]
    assert f"{rule('task').string.max_bytes // 1024} KiB" in said["task"][1]
    assert said["period_kind"][0] == f"`{defaults.period_kind}`"
    assert said["idle_seconds"][0] == f"{defaults.idle_ms}"
    assert f"`wait_seconds` ({WAIT_SECONDS:.0f})" in PAGE


def test_the_defaults_are_said_by_the_proto_too() -> None:
    proto = (ROOT / "proto/palimpsest/v1/memories.proto").read_text()
    body = proto.partition("message StateSpec {")[2].partition("\n}\n")[0]
    message = state_message(StateSpec())
    for name in ("period", "state_tokens"):
        comment = body.partition(f"int32 {name} =")[0].rpartition("  // Optional.")[2]
        said = " ".join(comment.replace("//", " ").split())
        assert f"0 means {getattr(message, name)}" in said


def test_options_of_the_command_line_have_the_proto_s_bounds() -> None:
    assert rule("period").int32.lte == options.MAX_PERIOD
    assert str(options.MAX_STATE_TOKENS) in rule("state_tokens").cel[0].message
    assert str(options.MAX_EPISODE_VECTORS) in rule("episode_vectors").cel[0].message
    hours = int(options.MAX_IDLE_SECONDS / 3600)
    assert f"duration('{hours}h')" in rule("idle").cel[0].expression


def test_the_limits_are_those_of_the_code() -> None:
    said, limits = rows(), Limits()
    assert said["recent chunks of a context"][0] == f"{limits.max_context_chunks:,}"
    assert said["their content"][0] == f"{limits.max_context_bytes // 2**20} MiB"
    tail = said["recent steps that a question navigates"][0]
    assert tail.startswith(f"{limits.max_tail_bytes // 2**20} MiB, and {CHUNK_BYTES} bytes")
    pinned = rule("pinned").repeated
    most, size = pinned.max_items, pinned.items.string.max_bytes
    assert said["pinned strings of a memory"][0] == f"{most}, each {size:,} bytes"
    assert said["a page of `ListStateVectors"][0].startswith(f"{MAX_PAGE_SIZE:,} vectors")
    assert PINNED_SHARE == 1 / 2
    assert "half of `state_tokens`" in PAGE
    assert ADAPTIVE_SPAN == 4
    assert "between N/4 and 4·N steps" in PAGE
    assert NEW_VECTORS == 2
    assert "as much new in them as two vectors can hold" in PAGE


@pytest.mark.parametrize("period", [1, 3, 5, 10, 20, 50])
def test_what_n_costs_is_what_a_loop_counts(period: int) -> None:
    """A loop of equal steps, counted one by one, after its first compression."""
    step, vector, periods = 200, 500, 4
    contexts = [vector + step * (t % period) for t in range(period * periods)]
    read = sum(contexts) + step * len(contexts)
    compressed = periods * (vector + step * period + vector)
    total = round((read + compressed) / len(contexts))
    assert rows()[str(period)] == [f"{max(contexts):,}", f"{total:,}"]


def test_n_is_cheapest_where_the_guide_says() -> None:
    vector, step = 500, 200

    def tokens(period: float) -> float:
        return vector + step * (period + 1) / 2 + step + 2 * vector / period

    best = 2 * math.sqrt(vector / step)
    assert tokens(best) < min(tokens(best * 0.99), tokens(best * 1.01))
