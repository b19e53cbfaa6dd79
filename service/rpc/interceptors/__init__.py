"""Cross-cutting concerns of the RPCs, one file each."""
