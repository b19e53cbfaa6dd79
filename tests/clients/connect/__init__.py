"""The HTTP server against the Connect protocol's own clients and its own suite."""
