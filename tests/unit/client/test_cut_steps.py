"""Steps that are too large are cut where the loop wishes it, and say so."""

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest import ChatMessage, TrainingExample
from palimpsest._convert_chunks import shortened
from tests.unit.client.agent_service import Service
from tests.unit.client.test_agents import connected


@given(text=st.text(st.characters(exclude_categories=["Cs"])), most=st.integers(40, 200))
def test_a_text_is_cut_to_its_bytes(text: str, most: int) -> None:
    cut = shortened(text, most)
    size = len(text.encode())
    assert len(cut.encode()) <= most
    if size <= most:
        assert cut == text
    else:
        kept, _, mark = cut.rpartition("… [")
        assert text.startswith(kept)
        assert mark == f"{size - len(kept.encode())} bytes cut]"


def test_there_is_room_for_the_mark() -> None:
    with pytest.raises(ValueError, match="cut_bytes must be 21 or more, not 20"):
        shortened("x" * 12_345, 20)


async def test_a_step_is_cut_if_the_loop_wishes_it() -> None:
    service = Service()
    async with connected(service) as client, client.agent("run") as agent:
        await agent.record("o" * 5000, "short", "a" * 5000, cut_bytes=1000)
        await agent.record("o" * 5000)
    first, second = (chunk.agent_step for chunk in service.chunks)
    assert (len(first.observation.encode()), len(first.action.encode())) == (1000, 1000)
    assert first.observation.endswith("bytes cut]")
    assert (first.thought, len(second.observation)) == ("short", 5000)


def test_a_training_example_has_the_names_of_the_export() -> None:
    messages = (ChatMessage(role="user", content="?"), ChatMessage(role="assistant", content="!"))
    example = TrainingExample(answer="a", ordinal=1, template="t/1", messages=messages)
    assert [asdict(one) for one in example.messages] == [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "!"},
    ]
