"""GOAL schedules, the text format of LogGOPSim and ATLAHS: reading of ranks, and writing with expanded collectives."""
