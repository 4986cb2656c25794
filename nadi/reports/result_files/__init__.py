"""Folders of results: their files, and their atomic publication."""
