"""Timelines as files that the Perfetto UI (ui.perfetto.dev) opens: its own protobuf format, written by hand.

`perfetto` knows the format and nothing of traces or runs; `lanes` puts slices that overlap side by side; `of_traces`
makes the timeline of Chakra traces.
"""
