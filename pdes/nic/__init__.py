"""The ports of an NPU: queue pairs, the reliable transport, pacing, congestion control, requests for large messages."""
