"""The command line: one file a command, and the wiring of the parts."""
