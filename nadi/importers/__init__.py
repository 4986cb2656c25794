"""Configurations of other simulators, read unchanged and translated to the sections of a run file.

Each importer is a folder with a module for each kind of file, which returns `FileSections`: sections of a run file, and
the keys that have no effect here. The commands of `nadi.cli` then run the sections as `nadi run` runs a file. The page
docs/reference/peers.md lists what each key means here.
"""
