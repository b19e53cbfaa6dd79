"""Published protocols of forgetting, run against a real deployment."""
