"""From a run file's configuration to what the engine takes, and whether this machine can hold it."""
