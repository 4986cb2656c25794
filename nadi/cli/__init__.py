"""The command line: its commands, the options that they share, and their output."""
