"""The Python client of Palimpsest.

    async with palimpsest.connect() as client:
        session = await client.create_session("user-42", exist_ok=True)
        memory = await session.create_memory("facts", SCHEMA, exist_ok=True)
        ack = await session.append("The harbour museum is closed on Mondays.")
        answer = await memory.ask("When is it closed?", after=ack.read_token)

`session.append` also takes messages ({"role": …, "content": …}) and lists of them, from any
number of processes; `session.producer` is for long streams from one. `session.remember` takes
conversations as the clients of models have them, and creates the session if it is missing;
`session.recall` returns what fits a query, as a text for a prompt:

    session = client.session("alice")
    await session.remember(messages)
    block = await session.recall("what may she eat?", tokens=800)

`connect` says where the service is, with which credentials and deadlines. `palimpsest.sync` has
the same without `await`. What these two export is the API; all other modules are private.
"""

from pkgutil import extend_path

# In a checkout the generated messages (palimpsest.v1) lie in another folder than
# this package; installed from wheels both are one folder and this changes nothing.
__path__ = extend_path(__path__, __name__)

from palimpsest import _exports
from palimpsest._async._access import Access
from palimpsest._async._agent import Agent
from palimpsest._async._client import Client, connect
from palimpsest._async._history import Provenance, Watch
from palimpsest._async._kinds import State, Tree
from palimpsest._async._listening import AnswerStream
from palimpsest._async._memory import Memory
from palimpsest._async._operation import Operation
from palimpsest._async._producer import Producer
from palimpsest._async._session import Session
from palimpsest._exports import *  # noqa: F403 - it has names that are exported only
from palimpsest._transport import VERSION

#: As it is installed.
__version__ = VERSION

__all__ = [
    "Access",
    "Agent",
    "AnswerStream",
    "Client",
    "Memory",
    "Operation",
    "Producer",
    "Provenance",
    "Session",
    "State",
    "Tree",
    "Watch",
    "__version__",
    "connect",
]
__all__ += _exports.__all__
