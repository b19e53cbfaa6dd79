"""The proxy, between real client libraries and a provider of the tests."""
