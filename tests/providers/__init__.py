"""Providers of models, emulated: what each refuses of a request, and how each answers.

One HTTP server (`server`) has all of them, a module each. The facts are in the design's page of
providers, the providers' SDKs and litellm's tests. What no document says is marked so.
"""
