"""Reads documented events of coding agents, and answers them."""

import json
import re
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from palimpsest_hook.events import (
    EVENTS,
    MAX_EVENT_BYTES,
    Agent,
    BadEvent,
    Event,
    answer,
    folder_of,
    last_reply,
    lost_its_thread,
    parsed,
    thread_of,
    turn_of,
)
from palimpsest_hook.queue import Queue
from palimpsest_hook.settings import Settings, session_of

#: Events as the agents document them.
CLAUDE: dict[str, Any] = {
    "session_id": "00893aaf",
    "transcript_path": "/nowhere/00893aaf.jsonl",
    "cwd": "/srv/engine",
    "permission_mode": "default",
    "prompt_id": "e0a44668",
}
CODEX: dict[str, Any] = {**CLAUDE, "model": "gpt-5.5-codex", "turn_id": "turn-7"}
CURSOR: dict[str, Any] = {
    "conversation_id": "c-1",
    "generation_id": "g-4",
    "model": "composer",
    "cursor_version": "2.6.0",
    "workspace_roots": ["/srv/engine"],
    "user_email": None,
    "transcript_path": None,
}


@pytest.mark.parametrize(
    ("agent", "kind", "event", "thread", "role", "text"),
    [
        ("claude-code", "prompt", {**CLAUDE, "prompt": "Go."}, "00893aaf", "user", "Go."),
        (
            "claude-code",
            "reply",
            {**CLAUDE, "stop_hook_active": False, "last_assistant_message": "Done.\n"},
            "00893aaf",
            "assistant",
            "Done.",
        ),
        ("codex", "prompt", {**CODEX, "prompt": "Use tabs."}, "00893aaf", "user", "Use tabs."),
        (
            "codex",
            "reply",
            {**CODEX, "stop_hook_active": True, "last_assistant_message": "Done."},
            "00893aaf",
            "assistant",
            "Done.",
        ),
        (
            "cursor",
            "prompt",
            {**CURSOR, "prompt": "Use tabs.", "attachments": []},
            "c-1",
            "user",
            "Use tabs.",
        ),
        ("cursor", "reply", {**CURSOR, "text": "Done."}, "c-1", "assistant", "Done."),
    ],
)
def test_a_turn_is_what_the_event_says(
    agent: Agent, kind: Event, event: dict[str, Any], thread: str, role: str, text: str
) -> None:
    turn = turn_of(agent, kind, parsed(json.dumps(event).encode()))
    assert turn is not None
    assert (turn.thread, turn.role, turn.text) == (thread, role, text)
    assert folder_of(agent, event) == Path("/srv/engine")


def test_a_turn_with_an_id_has_one_request_id_and_others_have_different_ones() -> None:
    def name(agent: Agent, event: dict[str, Any], text: str) -> str:
        turn = turn_of(agent, "prompt", {**event, "prompt": text})
        assert turn is not None
        return turn.request_id

    events: list[tuple[Agent, dict[str, Any], str]] = [
        ("claude-code", CLAUDE, "prompt_id"),
        ("codex", CODEX, "turn_id"),
        ("cursor", CURSOR, "generation_id"),
    ]
    for agent, event, field in events:
        assert name(agent, event, "a") == name(agent, event, "a") != name(agent, event, "b")
        assert name(agent, {**event, field: "8"}, "a") != name(agent, event, "a")
        without = {**event, field: ""}
        assert name(agent, without, "a") != name(agent, without, "a")


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"prompt": None},
        {"prompt": 7},
        {"prompt": ["x"]},
        {"prompt": " \n\0"},
    ],
)
def test_an_event_that_says_nothing_is_no_turn(event: dict[str, Any]) -> None:
    assert turn_of("claude-code", "prompt", event) is None
    assert turn_of("claude-code", "reply", event) is None


@pytest.mark.parametrize("kind", ["prompt", "reply"])
def test_what_a_subagent_says_is_no_turn_of_the_user(kind: Event) -> None:
    said = {"prompt": "Count.", "last_assistant_message": "Three."}
    assert turn_of("claude-code", kind, {**CLAUDE, **said}) is not None
    assert turn_of("claude-code", kind, {**CLAUDE, **said, "agent_id": "a1"}) is None


def test_what_the_agent_submits_itself_is_no_turn_of_the_user() -> None:
    def captured(agent: Agent, prompt: str) -> bool:
        return turn_of(agent, "prompt", {**CLAUDE, "prompt": prompt}) is not None

    told = "<task-notification>\n<task-id>ac72</task-id>\n</task-notification>"
    assert not captured("claude-code", told)
    assert not captured("claude-code", '<teammate-message teammate_id="b">Go.</teammate-message>')
    assert captured("claude-code", f"What does this mean? {told}")
    assert captured("claude-code", "<task-notifications> is a class of ours.")
    assert captured("codex", told)


def test_a_compacted_conversation_is_recalled_again() -> None:
    assert [lost_its_thread({"source": one}) for one in ("compact", "resume", "", 7)] == [
        *(True, False, False, False)
    ]


def test_halves_of_surrogate_pairs_and_slashes_do_not_reach_the_service() -> None:
    event = parsed(rb'{"session_id": "a/b\u0007\ud83d", "prompt": "half \ud83d of\u0000 it"}')
    turn = turn_of("claude-code", "prompt", event)
    assert turn is not None
    assert turn.text == "half ? of it"
    assert thread_of("claude-code", event) == "a_b__"


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_event_is_refused(data: bytes) -> None:
    with pytest.raises(BadEvent, match="standard input"):
        parsed(data)


def test_an_event_has_a_limit() -> None:
    with pytest.raises(BadEvent, match="bytes"):
        parsed(b" " * (MAX_EVENT_BYTES + 1))


def test_the_last_reply_is_read_from_a_transcript(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    said = [
        {"type": "user", "message": {"content": "Use tabs."}},
        {"type": "assistant", "message": {"content": [{"type": "text", "text": "first"}]}},
        {"type": "user", "message": {"content": [{"type": "tool_result", "content": "x"}]}},
        {
            "type": "assistant",
            "message": {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        },
        {"type": "assistant", "message": {"content": [{"type": "tool_use", "name": "Bash"}]}},
    ]
    path.write_text("\n".join(["cut} at the start", *map(json.dumps, said), "[1]", ""]))
    assert last_reply(path) == "a\n\nb"
    turn = turn_of("claude-code", "reply", {**CLAUDE, "transcript_path": str(path)})
    assert turn is not None
    assert turn.text == "a\n\nb"
    with path.open("a") as file:
        file.write(json.dumps({"type": "user", "message": {"content": "next"}}) + "\n")
    assert last_reply(path) == ""
    assert last_reply(tmp_path / "missing") == ""


def test_each_agent_is_answered_in_its_form() -> None:
    assert json.loads(answer("codex", "prompt", "known", "")) == {
        "hookSpecificOutput": {"hookEventName": "UserPromptSubmit", "additionalContext": "known"}
    }
    assert json.loads(answer("claude-code", "session-start", "known", "full")) == {
        "hookSpecificOutput": {"hookEventName": "SessionStart", "additionalContext": "known"},
        "systemMessage": "full",
    }
    assert json.loads(answer("cursor", "session-start", "known", "")) == {
        "additional_context": "known"
    }
    assert json.loads(answer("cursor", "prompt", "", "")) == {"continue": True}
    assert answer("claude-code", "prompt", "", "") == ""
    assert answer("codex", "reply", "", "") == ""


@pytest.mark.parametrize(
    ("url", "session"),
    [
        ("git@example.org:ada/engine.git", "code:ada.engine"),
        ("https://example.org/ada/engine.git", "code:ada.engine"),
        ("ssh://git@example.org:22/team/ada/engine", "code:ada.engine"),
        ("/srv/git/engine.git", "code:git.engine"),
    ],
)
def test_a_repository_has_the_session_of_its_remote(tmp_path: Path, url: str, session: str) -> None:
    config = tmp_path / ".git/config"
    config.parent.mkdir()
    config.write_text(f'[core]\n\tbare = false\n[remote "origin"]\n\turl = {url}\n')
    inner = tmp_path / "src/deep"
    inner.mkdir(parents=True)
    assert session_of(inner, {}) == session
    assert session_of(inner, {"PALIMPSEST_SESSION": "ada"}) == "ada"


@pytest.mark.parametrize("config", [None, "", "no section", '[remote "origin"]\nfetch = x\n'])
def test_without_a_remote_the_folder_is_the_session(tmp_path: Path, config: str | None) -> None:
    top = tmp_path / "engine"
    (top / ".git").mkdir(parents=True)
    if config is not None:
        (top / ".git/config").write_text(config)
    found = session_of(top, {})
    assert found.startswith("code:engine-")
    (tmp_path / "other/engine").mkdir(parents=True)
    assert session_of(tmp_path / "other/engine", {}) != found


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"PALIMPSEST_HTTP_URL": "localhost:50080"}, "PALIMPSEST_HTTP_URL"),
        ({"PALIMPSEST_HTTP_URL": "http://"}, "PALIMPSEST_HTTP_URL"),
        ({"PALIMPSEST_HOOK_TOKENS": "many"}, "PALIMPSEST_HOOK_TOKENS"),
        ({"PALIMPSEST_HOOK_TOKENS": "100001"}, "PALIMPSEST_HOOK_TOKENS"),
        ({"PALIMPSEST_HOOK_SECONDS": "soon"}, "PALIMPSEST_HOOK_SECONDS"),
        ({"PALIMPSEST_HOOK_SECONDS": "0"}, "PALIMPSEST_HOOK_SECONDS"),
        ({"PALIMPSEST_HOOK_SECONDS": "nan"}, "PALIMPSEST_HOOK_SECONDS"),
    ],
)
def test_a_wrong_variable_is_named(variables: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Settings.of(variables)


def test_each_service_has_a_queue_of_its_own() -> None:
    one = Settings.of({"PALIMPSEST_HOOK_QUEUE": "/q"}).queue
    two = Settings.of({"PALIMPSEST_HOOK_QUEUE": "/q", "PALIMPSEST_ADDRESS": "other:50051"}).queue
    assert one != two
    assert one.parent == two.parent == Path("/q")


AGENTS_FOLDER = Path(__file__).parents[3] / "clients/agents"
GUIDE = (Path(__file__).parents[3] / "docs/guides/hooks.md").read_text()


@pytest.mark.parametrize("agent", ["claude-code", "codex", "cursor"])
def test_the_plugin_runs_the_hook_at_each_event_in_the_agents_form(agent: Agent) -> None:
    plugin = AGENTS_FOLDER / agent
    (manifest,) = plugin.glob(".*-plugin/plugin.json")
    assert json.loads(manifest.read_text())["name"] == "palimpsest"
    hooks = json.loads((plugin / "hooks/hooks.json").read_text())["hooks"]
    if agent == "cursor":
        commands = {event: one["command"] for event, (one,) in hooks.items()}
        names = ("sessionStart", "beforeSubmitPrompt", "afterAgentResponse")
    else:
        commands = {event: one["hooks"][0]["command"] for event, (one,) in hooks.items()}
        names = ("SessionStart", "UserPromptSubmit", "Stop")
    assert commands == {
        name: f"palimpsest-hook {kind} --agent {agent}"
        for name, kind in zip(names, EVENTS, strict=True)
    }
    (server,) = (
        json.loads(one.read_text()) for one in (*plugin.glob(".mcp.json"), *plugin.glob("mcp.json"))
    )
    started = {"command": "palimpsest-hook", "args": ["mcp"]}
    # Codex hides the environment from a server, but for what is named.
    named = server["mcpServers"]["palimpsest"].pop("env_vars", [])
    assert server == {"mcpServers": {"palimpsest": started}}
    of_the_client = set(re.findall(r"PALIMPSEST_(?!HOOK|HTTP)[A-Z_]+", GUIDE))
    assert set(named) == (of_the_client if agent == "codex" else set())


@pytest.mark.parametrize(
    ("agent", "marketplace"),
    [
        ("claude-code", ".claude-plugin/marketplace.json"),
        ("codex", ".agents/plugins/marketplace.json"),
        ("cursor", ".cursor-plugin/marketplace.json"),
    ],
)
def test_each_agent_finds_its_own_plugin_in_the_folder(agent: Agent, marketplace: str) -> None:
    found = json.loads((AGENTS_FOLDER / marketplace).read_text())
    (plugin,) = found["plugins"]
    assert (found["name"], plugin["name"]) == ("palimpsest", "palimpsest")
    source = plugin["source"]
    assert (source["path"] if agent == "codex" else source) == f"./{agent}"


def test_a_flush_may_wait_until_another_process_has_delivered(tmp_path: Path) -> None:
    queue, ended = Queue(tmp_path), list[str]()

    def flush() -> None:
        with queue.locked(wait=True) as mine:
            ended.append(f"second, {mine}")

    with queue.locked() as mine:
        assert mine
        second = Thread(target=flush)
        second.start()
        with queue.locked() as other:
            assert not other
        ended.append("first")
    second.join()
    assert ended == ["first", "second, True"]
