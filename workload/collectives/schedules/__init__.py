"""Schedules, the plans of all members as arrays for the engine, and what can be read back from them."""
