"""Removes guards one by one, and checks that the tests notice."""
