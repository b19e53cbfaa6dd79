"""A proxy that adds memory to any client of OpenAI's or Anthropic's API (docs/guides/proxy.md)."""
