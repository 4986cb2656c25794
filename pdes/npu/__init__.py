"""What an NPU does: its trace, lanes, collectives and their turns, and all of that in one order of time."""
