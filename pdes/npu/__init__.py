"""The NPU: its trace, lanes, collectives and their turns, processed in time order."""
