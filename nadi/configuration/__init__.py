"""Run files: their sections and keys, when each key matters, and the files that a configuration reads."""
