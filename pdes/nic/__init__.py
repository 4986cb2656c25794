"""The ports of an NPU: queue pairs, reliable transport, pacing, congestion control, rendezvous for large messages."""
