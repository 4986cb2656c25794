"""GOAL schedules, the text of LogGOPSim and ATLAHS: reading a rank, and writing one with collectives as messages."""
