"""Captures the turns of coding agents by their hooks, and gives the agents what is remembered.

An agent starts `palimpsest-hook EVENT` for each event, with the event as JSON on standard input.
What the user and the agent say is written to a queue on disk, and a process in the background
remembers it; so nothing waits for the service, and nothing is lost while it is away. Only the
standard library is loaded here: an agent waits for the hook at each prompt.
"""
