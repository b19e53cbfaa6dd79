"""A Redis cluster of several nodes on this machine, from the embedded server's program."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from service.local import binaries
from service.local.processes import free_port

NODES = 3
SLOTS = 16_384
READY_SECONDS = 90.0


@contextmanager
def cluster(folder: Path) -> Iterator[list[str]]:
    """URLs of the nodes; each holds a third of the slots. Stopped at the end."""
    program = binaries.find_valkey()
    with ExitStack() as stack:
        urls = []
        for number in range(NODES):
            port = free_port()
            home = folder / f"node-{number}"
            home.mkdir()
            node = subprocess.Popen(
                [str(program), *_settings(port, home)],
                cwd=home,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
            )
            stack.callback(node.wait)
            stack.callback(node.kill)
            urls.append(f"redis://127.0.0.1:{port}/0")
        nodes = [stack.enter_context(Redis.from_url(url)) for url in urls]
        _join(nodes)
        yield urls


def _settings(port: int, home: Path) -> list[str]:
    settings = {
        "bind": "127.0.0.1",
        "port": str(port),
        "cluster-enabled": "yes",
        # By default 10,000 ports higher, which another process may have.
        "cluster-port": str(free_port()),
        "cluster-config-file": str(home / "nodes.conf"),
        "cluster-node-timeout": "60000",
        "save": "",
        "appendonly": "no",
    }
    return [word for name, value in settings.items() for word in (f"--{name}", value)]


def _join(nodes: list[Any]) -> None:
    for node in nodes:
        _wait(lambda one: bool(one.ping()), node)
    ports = [(node.config_get("port")["port"], node.config_get("cluster-port")) for node in nodes]
    for number, node in enumerate(nodes):
        first = number * SLOTS // NODES
        last = (number + 1) * SLOTS // NODES - 1
        node.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        port, bus = ports[number]
        nodes[0].execute_command("CLUSTER", "MEET", "127.0.0.1", port, bus["cluster-port"])
    for node in nodes:
        _wait(_is_whole, node)


def _is_whole(node: Any) -> bool:
    told = node.execute_command("CLUSTER INFO")
    return told["cluster_state"] == "ok" and int(told["cluster_known_nodes"]) == NODES


def _wait(ready: Callable[[Any], bool], node: Any) -> None:
    until = time.monotonic() + READY_SECONDS
    while True:
        try:
            if ready(node):
                return
        except RedisError:
            # It does not listen yet.
            pass
        if time.monotonic() > until:
            raise TimeoutError("the cluster did not come up")
        time.sleep(0.05)
