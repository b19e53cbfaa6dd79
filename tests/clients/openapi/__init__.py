"""The API over HTTP against its OpenAPI document."""
