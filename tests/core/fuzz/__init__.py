"""Mutations and targets for fuzzing what reads untrusted bytes."""
