"""DCISO: the browsing reader (arXiv 2405.15318). Pure values and algorithms."""
