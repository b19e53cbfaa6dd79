"""The command that the suite starts for each server: `python -S relay.py SOCKET`."""

import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    connection.sendall(os.read(0, 1 << 20))
    # The suite ends this process, which closes the connection.
    while content := connection.recv(1 << 16):
        os.write(1, content)
