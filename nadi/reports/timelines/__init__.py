"""Timelines in Perfetto's protobuf format, which the Perfetto UI (ui.perfetto.dev) opens.

`perfetto` writes the format, independently of traces and runs; `lanes`
distributes overlapping slices over tracks; `of_traces` and `of_runs` write the timelines of Chakra traces and of runs.
"""
