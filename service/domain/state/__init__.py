"""State vectors: periodic context compression (PCC) of a session's steps."""
