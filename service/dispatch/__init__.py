"""Gives work to workers. What makes work exactly-once is not here but in storage."""
