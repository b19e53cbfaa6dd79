"""The tools for models (Model Context Protocol): one implementation for both transports."""
