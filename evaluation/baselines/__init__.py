"""Baselines: ways to answer without a memory, to compare MemWalker with (section 4.3)."""
