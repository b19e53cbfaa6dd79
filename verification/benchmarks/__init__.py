"""Benchmarks: each prints one JSON line last, and measures a ratio inside one run."""
