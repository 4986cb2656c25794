"""Timelines as files that the Perfetto UI (ui.perfetto.dev) opens: its own protobuf format.

`perfetto` writes the format, whose messages are in `perfetto_messages`, and knows nothing of traces or runs; `lanes`
puts slices that overlap side by side; `of_traces` makes the timeline of Chakra traces.
"""
