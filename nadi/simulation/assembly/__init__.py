"""Conversion of a run file's configuration to inputs of the engine, and checks of this machine's resources."""
