"""The Python client works with the oldest gRPC and protobuf that its packages take."""

import os
import subprocess

import pytest

from tests import ROOT
from tests.support.harness import absent, api

pytestmark = pytest.mark.prove

PYTHON = ROOT / ".venv-oldest/bin/python"
PROGRAM = """
import asyncio, sys
from importlib.metadata import version
import palimpsest
from palimpsest import sync

async def main():
    async with palimpsest.connect(sys.argv[1]) as client:
        session = await client.create_session("s")
        await session.append("The museum is closed on Mondays.")
        async with session.producer("p") as producer:
            await producer.append("It has geese.")
        print([chunk.text async for chunk in session.chunks()])
        try:
            await client.create_session("s")
        except palimpsest.AlreadyExists as error:
            print(error.reason, error.metadata)

asyncio.run(main())
with sync.connect(sys.argv[1]) as client:
    print(client.session("s").info().head)
print(version("protobuf"), version("grpcio"), version("grpcio-status"))
"""


def test_a_client_beside_them_writes_reads_and_is_refused(url: str) -> None:
    if not PYTHON.exists():
        absent("the environment with the oldest libraries")
    with api(url) as (_, address):
        done = subprocess.run(
            [PYTHON, "-W", "error", "-c", PROGRAM, address],
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
            cwd="/",
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT / 'proto'}{os.pathsep}{ROOT / 'clients/python'}",
            },
        )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "['The museum is closed on Mondays.', 'It has geese.']",
        "SESSION_EXISTS {'session': 's'}",
        "2",
        "6.31.1 1.76.0 1.76.0",
    ]
