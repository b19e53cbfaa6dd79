"""LangGraph: a checkpointer and a store (`pip install palimpsest-sdk[langgraph]`)."""

from palimpsest.integrations._langgraph_saver import PalimpsestSaver
from palimpsest.integrations._langgraph_store import PalimpsestStore

__all__ = ["PalimpsestSaver", "PalimpsestStore"]
