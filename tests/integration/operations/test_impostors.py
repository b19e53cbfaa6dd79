"""An impostor of the embedded PostgreSQL does not get its password by requesting it."""

import socket
import struct
import threading
from collections.abc import Iterator

import psycopg
import pytest

from service.domain.values.tenancy import DEFAULT_TENANT
from service.local.postgres import url_of
from storage.engine.database import Database
from storage.engine.errors import Unreachable

PASSWORD = "secret-word"
#: AuthenticationCleartextPassword and AuthenticationMD5Password, see PostgreSQL's protocol.
ASKS = {"cleartext": struct.pack("!I", 3), "md5": struct.pack("!I4s", 5, b"salt")}
#: Requests for encryption that come before anything else: SSL, and GSSAPI.
ENCRYPTION = (80877103, 80877104)


class Impostor:
    """Listens where a server of ours was, and asks for the password; `heard` is what it gets."""

    def __init__(self, ask: bytes) -> None:
        self._ask = ask
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.asked = 0
        self.heard = b""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                # It was closed.
                return
            with connection:
                self._ask_for_it(connection)

    def _ask_for_it(self, connection: socket.socket) -> None:
        while True:
            size, code = struct.unpack("!II", _read(connection, 8))
            _read(connection, size - 8)
            if code not in ENCRYPTION:
                break
            connection.sendall(b"N")
        self.asked += 1
        connection.sendall(b"R" + struct.pack("!I", 4 + len(self._ask)) + self._ask)
        try:
            while part := connection.recv(4096):
                self.heard += part
                connection.sendall(b"E" + struct.pack("!I", 5) + b"\0")
        except OSError:
            # It was left.
            return


def _read(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        found += connection.recv(count - len(found))
    return found


@pytest.fixture(params=ASKS)
def impostor(request: pytest.FixtureRequest) -> Iterator[Impostor]:
    impostor = Impostor(ASKS[request.param])
    yield impostor
    impostor.close()


@pytest.mark.prove
async def test_the_password_is_not_sent_to_an_impostor(impostor: Impostor) -> None:
    url = url_of("palimpsest", PASSWORD, impostor.port, "palimpsest")
    database = Database.connect(url, pool_size=1, name="test")
    try:
        with pytest.raises(Unreachable, match="authentication method"):
            async with database.transaction(DEFAULT_TENANT):
                raise AssertionError("it was opened")
        with pytest.raises(Unreachable):
            async with database.direct(DEFAULT_TENANT) as tx:
                await tx.fetch("SELECT 1", {})
    finally:
        await database.close()
    assert impostor.asked >= 2
    assert impostor.heard == b""


def test_it_is_sent_where_nothing_forbids_it(impostor: Impostor) -> None:
    plain = url_of("palimpsest", PASSWORD, impostor.port, "palimpsest").partition("?")[0]
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(plain, connect_timeout=10)
    # `p`, a password's message; of md5 it holds what the password can be guessed by.
    assert impostor.heard.startswith(b"p")
    assert (PASSWORD.encode() in impostor.heard) == (impostor._ask == ASKS["cleartext"])
