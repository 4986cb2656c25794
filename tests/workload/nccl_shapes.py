"""Groups on hosts of any size, as Shapes made by hand."""

from nadi.workload.shape import GroupShape

G = 10**9
NVLINK_BPS, NIC_BPS = 2400 * G, 200 * G
INSIDE_PS, OUTSIDE_PS = 50_000, 1_000_000


def hosts(*sizes, order=None, inside_bps=NVLINK_BPS, outside_bps=NIC_BPS):
    """Members host by host, or as `order` deals them; hosts of one member have no NVLink."""
    at = [(host, place) for host, size in enumerate(sizes) for place in range(size)]
    if order is not None:
        at = [at[i] for i in order]
    number = {host: i for i, host in enumerate(dict.fromkeys(host for host, _ in at))}
    inside = (inside_bps, INSIDE_PS) if max(sizes) > 1 else (0, 0)
    outside = (outside_bps, OUTSIDE_PS) if len(sizes) > 1 else (0, 0)
    rate_bps, latency_ps = outside if len(sizes) > 1 else inside
    host, place = tuple(number[host] for host, _ in at), tuple(place for _, place in at)
    return GroupShape(len(at), (len(at),), (rate_bps,), (latency_ps,), host, place, *inside, *outside)
