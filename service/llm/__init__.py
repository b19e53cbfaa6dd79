"""The model gateway: flows are driven, calls are replayed, predicted, made and kept."""
