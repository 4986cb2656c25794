"""Rules about the text of sources and documents that no linter knows: python -m tests.rules

Each finding is one line, FILE:LINE: WHAT. A module has the rules of one subject and `findings()` of the whole tree.
"""
