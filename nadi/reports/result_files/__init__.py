"""Folders of results: their files, and how a folder appears under its name when it is complete."""
