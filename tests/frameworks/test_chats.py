"""LangChain, OpenAI's Agents SDK, Pydantic AI and LlamaIndex, with scripted models."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import Agent, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from agents.models.interface import Model
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables.history import RunnableWithMessageHistory
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import Memory
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, TextPart
from pydantic_ai.messages import ModelResponse as PydanticResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel

from palimpsest.integrations.langchain import PalimpsestChatMessageHistory
from palimpsest.integrations.llama_index import PalimpsestMemoryBlock
from palimpsest.integrations.openai_agents import PalimpsestSession
from palimpsest.integrations.pydantic_ai import PalimpsestMemory
from palimpsest.sync import Client

set_tracing_disabled(True)


class Scripted(Model):
    """Replies with what it is given, in order, and keeps what it was asked."""

    def __init__(self, *replies: Any) -> None:
        self._replies = list(replies)
        self.asked: list[Any] = []

    async def get_response(self, *given: Any, **named: Any) -> ModelResponse:
        self.asked.append(given[1] if len(given) > 1 else named["input"])
        return ModelResponse(output=[self._replies.pop(0)], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise AssertionError("nothing here streams")


def says(text: str) -> ResponseOutputMessage:
    """Returns a reply of a model."""
    part = ResponseOutputText(text=text, type="output_text", annotations=[])
    return ResponseOutputMessage(
        id="m1", content=[part], role="assistant", status="completed", type="message"
    )


async def test_an_agent_of_openai_goes_on_in_another_process(client: Client, name: str) -> None:
    @function_tool
    def look_up(word: str) -> str:
        """Looks up a word."""
        return f"{word}: a nut"

    call = ResponseFunctionToolCall(
        call_id="c1", name="look_up", arguments='{"word": "pecan"}', type="function_call"
    )
    model = Scripted(call, says("A pecan is a nut."), says("Ann."))
    agent = Agent(name="helper", model=model, tools=[look_up])
    session = PalimpsestSession("chat-1", client.session(name))
    first = await Runner.run(agent, "I am Ann. What is a pecan?", session=session)
    assert first.final_output == "A pecan is a nut."
    again = PalimpsestSession("chat-1", client.session(name))
    await Runner.run(agent, "Who am I?", session=again)
    kinds = [one.get("type", one.get("role")) for one in model.asked[-1]]
    assert kinds == ["user", "function_call", "function_call_output", "message", "user"]
    assert model.asked[-1][1]["arguments"] == '{"word": "pecan"}'
    assert "I am Ann" in str(client.session(name).recall("Who is Ann?"))
    steps = [one for one in client.session(name).chunks() if one.kind == "agent_step"]
    assert (steps[0].action, steps[1].observation) == ('look_up({"word": "pecan"})', "pecan: a nut")


async def test_programs_at_once_add_whole_items(client: Client, name: str) -> None:
    # Each takes several chunks, and has what JSON may have and UTF-8 may not.
    items: list[Any] = [
        {"role": "user", "content": f"{number}\ud800\0 " + os.urandom(20_000).hex()}
        for number in range(4)
    ]
    sessions = [PalimpsestSession("chat-1", client.session(name)) for _ in items]
    adding = [one.add_items([item]) for one, item in zip(sessions, items, strict=True)]
    await asyncio.gather(*adding)
    found: list[Any] = await sessions[0].get_items()
    assert sorted(found, key=lambda one: one["content"]) == items


async def test_items_of_a_session_are_counted_popped_and_cleared(client: Client, name: str) -> None:
    session = PalimpsestSession("chat-1", client.session(name))
    other = PalimpsestSession("chat-2", client.session(name))
    assert await session.get_items() == []
    assert await session.pop_item() is None
    large = "word " * 60_000
    items: list[Any] = [{"role": "user", "content": text} for text in ("one", large, "three")]
    await session.add_items(items)
    await other.add_items(items[:1])
    assert await session.get_items() == items
    assert await session.get_items(2) == items[1:]
    assert await session.get_items(0) == []
    assert await session.pop_item() == items[2]
    assert await session.get_items() == items[:2]
    await session.clear_session()
    assert await session.get_items() == []
    assert await other.get_items() == items[:1]


def test_a_chain_of_langchain_has_its_history(client: Client, name: str) -> None:
    call = {"name": "look_up", "args": {"word": "pecan"}, "id": "c1", "type": "tool_call"}
    replies = [AIMessage("I look.", tool_calls=[call]), AIMessage("Noted, Ann.")]
    chain: Any = RunnableWithMessageHistory(
        FakeMessagesListChatModel(responses=replies),
        lambda session_id: PalimpsestChatMessageHistory(client.session(name), session_id),
    )
    config = {"configurable": {"session_id": "t1"}}
    chain.invoke([HumanMessage("I am Ann.")], config)
    chain.invoke([ToolMessage("a nut", tool_call_id="c1")], config)
    history = PalimpsestChatMessageHistory(client.session(name), "t1")
    assert [one.type for one in history.messages] == ["human", "ai", "tool", "ai"]
    assert history.messages[1].tool_calls == [call]
    step = next(one for one in client.session(name).chunks() if one.action)
    assert (step.thought, step.action) == ("I look.", "look_up({'word': 'pecan'})")
    assert PalimpsestChatMessageHistory(client.session(name), "t2").messages == []
    assert "I am Ann." in str(client.session(name).recall("Ann"))
    history.clear()
    assert history.messages == []
    assert "I am Ann." not in str(client.session(name).recall("Ann"))


async def test_an_agent_of_pydantic_recalls_what_another_conversation_said(
    client: Client, name: str
) -> None:
    seen: list[str] = []

    def reply(messages: list[ModelMessage], info: AgentInfo) -> PydanticResponse:
        seen.append(info.instructions or "")
        return PydanticResponse(parts=[TextPart("Noted.")])

    memory = PalimpsestMemory(client.session(name))
    agent = PydanticAgent(FunctionModel(reply), capabilities=[memory], instructions="Be kind.")
    await agent.run("I am Ann, and I eat no nuts.")
    await agent.run("What may I eat?")
    assert "nuts" not in seen[0]
    assert "I am Ann, and I eat no nuts." in seen[1]
    assert "Be kind." in seen[1]
    chunks = list(client.session(name).chunks())
    assert [one.role for one in chunks] == ["user", "assistant"] * 2
    assert len({one.thread for one in chunks if one.thread}) in (0, 2)


async def test_a_memory_of_llama_index_recalls_what_left_it(client: Client, name: str) -> None:
    block = PalimpsestMemoryBlock(name="long_term", session=client.session(name))
    memory = Memory.from_defaults(
        session_id="c1",
        token_limit=60,
        chat_history_token_ratio=0.5,
        token_flush_size=10,
        memory_blocks=[block],
    )
    await memory.aput(ChatMessage(role="user", content="I am Ann, and I eat no nuts at all."))
    await memory.aput(ChatMessage(role="assistant", content="Noted."))
    for number in range(12):
        await memory.aput(ChatMessage(role="user", content=f"Here is some more talk, {number}."))
    chunks = list(client.session(name).chunks())
    assert chunks[0].text == "I am Ann, and I eat no nuts at all."
    assert chunks[0].thread == "c1"
    found = await memory.aget(input="What does Ann eat?")
    assert "no nuts at all" in " ".join(str(one.content) for one in found)


@pytest.mark.parametrize("module", ["langgraph", "langchain_core", "agents", "llama_index"])
def test_the_client_alone_loads_no_framework(module: str) -> None:
    code = f"import palimpsest.integrations, sys; sys.exit('{module}' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
