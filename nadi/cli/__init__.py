"""The command line: one file per command, its options, completion, and `nadi doctor`."""
