"""Tests of the C core and its wrappers."""
