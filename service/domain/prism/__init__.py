"""PRISM: structured memories, revised chunk by chunk (arXiv 2412.18914)."""
