"""A run that cannot finish: two NPUs send to each other only after they have received."""

from nadi import et


def add_a_knot(nodes_of_npu, one, other):
    """Let two NPUs wait for each other for ever."""
    for npu, peer in ((one, other), (other, one)):
        receive, send = et.recv_node(2, "recv", peer, npu, 64), et.send_node(3, "send", npu, peer, 64, deps=[2])
        nodes_of_npu[npu] += [receive, send]


def check_said_once(done, out, one, other):
    """The completed process ended with one error that names who waits, and left no results."""
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert not out.exists()
    head, *waits = done.stderr.splitlines()
    assert head.startswith("nadi: error: nothing is left to happen at ")
    assert sorted(line.strip() for line in waits) == [
        f"npu {npu} row 1: receive 0 of tag 0 waits for npu {peer}" for npu, peer in ((one, other), (other, one))
    ]
    return head
