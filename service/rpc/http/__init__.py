"""The same methods over HTTP, by the Connect protocol and as server-sent events."""
