"""Runs the hooks and plugins of clients/agents in real programs: `python -m verification.agents`.

The programs are installed from their registry for this check only, 800 MB by a lock with hashes,
and ask a model of ours (`models`), so that nothing but the registry is reached.
"""
