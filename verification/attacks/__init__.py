"""Attacks on a running service, each of which once succeeded: `make attack`."""
