"""The offline model: it serves where none is configured. `model` is what answers each prompt."""
