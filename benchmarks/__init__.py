"""Benchmarks: figures with targets, measured side by side with peers; never part of the tests."""
