"""MemWalker: summary trees that grow with the stream, and their navigation (arXiv 2310.05029)."""
