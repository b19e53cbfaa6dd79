"""Ports of embedded servers: chosen where the kernel gives none away, and never a taken one."""

import socket

import pytest

from service.local import processes
from service.local.processes import PORTS, free_port


def test_free_ports_are_chosen_where_the_kernel_gives_none_away() -> None:
    found = {free_port() for _ in range(20)}
    assert len(found) > 1
    assert all(port in PORTS for port in found)


def test_a_port_that_is_taken_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        taken = somebody.getsockname()[1]
        monkeypatch.setattr(processes, "PORTS", range(taken, taken + 1))
        assert free_port() != taken
