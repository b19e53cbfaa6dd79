"""A memory's prompts on a real engine: what it keeps, and what it computes anew.

Needs `make setup-local`. Tokens are asserted, never times, and nothing of what the small
model says.
"""

import pytest

from service.domain.prism.spec import Encoding
from tests.support.engine import Engine, engine, installed
from tests.support.harness import Servers
from verification.benchmarks.kv import BLOCK_TOKENS, Measured, chunk_text, measure, reply_text

pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(not installed(), reason="the engine is not installed: make setup-local"),
    # The first prompt alone is a thousand tokens, twenty a second on a busy machine.
    pytest.mark.timeout(400),
]
STEPS = 6


async def taken(servers: Servers, encoding: Encoding) -> tuple[Measured, int]:
    """Returns a memory's calls on an engine with an empty cache, and tokens of the longest step."""
    with engine() as server:
        found = await measure(servers, server, encoding, STEPS)
        return found, longest_step(server)


def longest_step(server: Engine) -> int:
    """Tokens that a step adds to the prompt at most: what it read, what the last one wrote."""
    # A mark has two lines of up to 29 tokens; an amendment's path is written out, in a line of
    # its own.
    marks, path = 2 * 29, 40
    texts = (server.count(chunk_text(n)) + server.count(reply_text(n)) for n in range(STEPS))
    return max(texts) + marks + path


async def test_amendments_are_all_that_is_computed_besides_the_text(servers: Servers) -> None:
    found, longest = await taken(servers, Encoding.AMENDMENTS)
    computed = [a - b for a, b in zip(found.prompts, found.reported, strict=True)]
    assert found.evaluated == sum(computed), "the engine's own count is what it reports"
    assert computed[0] == found.prompts[0], "nothing was there at first"
    assert max(computed[1:]) <= longest
    assert found.reported[1:] == sorted(found.reported[1:])
    assert found.reported[-1] > found.prompts[0]
    off = [abs(a - b) for a, b in zip(found.predicted, found.reported, strict=True)]
    assert max(off) <= BLOCK_TOKENS, "what is predicted is found"


async def test_a_memory_in_place_is_computed_from_its_first_change_on(servers: Servers) -> None:
    found, _ = await taken(servers, Encoding.IN_PLACE)
    computed = [a - b for a, b in zip(found.prompts, found.reported, strict=True)]
    assert found.evaluated == sum(computed)
    # The task with the schema stays, and some of the memory, never all of it.
    assert min(found.reported[1:]) > found.prompts[0] / 2
    assert max(found.reported) < min(found.prompts)
