"""Plays the programs that a newcomer has already: what starts the MCP server, the hook, a model.

`python -m verification.newcomer_hosts mcp|hook|proxy`, in the user's folder, by
`verification.newcomer`. Prints what came back of a fact.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests import ROOT

FACT, QUESTION = "Alice eats no nuts.", "What may she eat?"
HOOKS = ROOT / "clients/agents/claude-code/hooks/hooks.json"


def mcp() -> None:
    """Starts the server of mcp.json, as Claude Desktop does, and calls its tools."""
    server = json.loads(Path("mcp.json").read_text())["mcpServers"]["palimpsest"]
    # "Write the whole path", says the page.
    server["command"] = str(shutil.which(Path(server["command"]).name))

    async def calls() -> None:
        started = StdioServerParameters(**server, env=dict(os.environ))
        async with Client(stdio_client(started)) as client:
            await client.call_tool("remember", {"text": FACT})
            print(await client.call_tool("recall", {"query": QUESTION}))

    asyncio.run(calls())


def hook() -> None:
    """Runs the hook of Claude Code's plugin for a prompt of each of two conversations."""
    (configured,) = json.loads(HOOKS.read_text())["hooks"]["UserPromptSubmit"][0]["hooks"]
    shown = ""
    for said, conversation in ((FACT, "monday"), (QUESTION, "tuesday")):
        event = {
            "hook_event_name": "UserPromptSubmit",
            "permission_mode": "default",
            "session_id": conversation,
            "cwd": os.getcwd(),
            "prompt": said,
        }
        shown = subprocess.run(
            ["sh", "-c", configured["command"]],
            input=json.dumps(event),
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        ).stdout
        subprocess.run(["palimpsest-hook", "flush"], stdout=subprocess.DEVNULL, check=True)
    print(shown)


class Model(BaseHTTPRequestHandler):
    """A provider whose model knows what is in its prompt, and nothing else."""

    def do_POST(self) -> None:
        """Replies to a chat completion."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = json.dumps(asked["messages"])
        knows = "Which nuts" in prompt and "I eat no nuts" in prompt
        message = {"role": "assistant", "content": "None: you eat no nuts." if knows else "Well."}
        body = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": asked["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        raw = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        """Keeps quiet."""


def proxy() -> None:
    """Runs the proxy before a provider of its own, and the user's program."""
    provider = HTTPServer(("127.0.0.1", 0), Model)
    Thread(target=provider.serve_forever, daemon=True).start()
    (listen,) = re.findall(r"http://([\d.:]+)/s/", Path("program.py").read_text())
    url = f"http://127.0.0.1:{provider.server_port}"
    arguments = ["palimpsest", "proxy", "--openai", url, "--listen", listen]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as proxy:
        try:
            assert proxy.stdout is not None
            assert any(b"Anthropic's clients" in line for line in proxy.stdout), "it did not start"
            subprocess.run(
                [sys.executable, "program.py"],
                env={**os.environ, "OPENAI_API_KEY": "none"},
                check=True,
            )
        finally:
            proxy.terminate()


if __name__ == "__main__":
    {"mcp": mcp, "hook": hook, "proxy": proxy}[sys.argv[1]]()
