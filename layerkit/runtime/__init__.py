"""Stacks and sandboxes: the backends and the agent. Never imports the compiler."""
