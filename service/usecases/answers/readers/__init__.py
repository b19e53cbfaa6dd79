"""Readers, which answer questions: one file each, named as questions name them.

What they share is in `answering`; the other files are what they read, and what they cite.
"""
