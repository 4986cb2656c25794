"""Groups on hosts of any size; an idle network like tests.workload.alpha_beta, with NICs and NVLinks."""

from nadi.workload.shape import GroupShape
from tests.workload.alpha_beta import Network, of_lanes

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


class HostsNetwork(Network):
    """Members send inside their host over one port and to others over another; messages take turns whole."""

    def __init__(self, schedules, shape, size):
        super().__init__(schedules, 0, size, None, None)
        self.shape, self.now = shape, float(schedules.launch_ps[0])
        self.waits = [list(self.waits_of(schedules, member)) for member in range(shape.members)]
        self.due = set()
        self.shares = of_lanes(schedules, 0, "lane_shares")
        assert all(sum(1 / n for n in own if n > 1) < 1 + 1e-9 for own in self.shares)

    def waits_of(self, schedules, member):
        plan = schedules.plan_of[0 if schedules.relative[0] else member]
        return schedules.lane_latency_ps[schedules.plan_ptr[plan] : schedules.plan_ptr[plan + 1]].tolist()

    def half_step(self, member, lane):
        steps, done = self.lanes[member][lane], self.done[member][lane]
        if (member, lane) in self.due:
            return False
        if done < len(steps) and not self.posted[member][lane] and steps[done].send_peer >= 0:
            step = steps[done]
            if step.dep_lane >= 0 and self.done[member][step.dep_lane] <= step.dep_step:
                return False
            self.due.add((member, lane))
            self.at(self.now + self.waits[member][lane], "send", member, lane)
            return True
        return super().half_step(member, lane)

    def send(self, member, lane):
        self.due.remove((member, lane))
        step = self.lanes[member][lane][self.done[member][lane]]
        buffer, (wire, per) = self.buffers[member][lane], self.buffers[member][lane].wire
        far = self.shape.host[member] != self.shape.host[step.send_peer]
        rate = self.shape.outside_bps if far else self.shape.inside_bps
        data = self.size * step.send_count / (buffer.parts * buffer.chunks)
        duration = data * wire / per * 8e12 / rate
        line = (far, lane if self.shares[member][lane] > 1 else None)
        duration *= self.shares[member][lane]
        start = max(self.now, self.sender_free[member, line])
        self.sender_free[member, line] = start + duration
        path = self.shape.outside_ps if far else self.shape.inside_ps
        self.at(start + path, "head_arrives", step.send_peer, step.send_lane, duration, line)
        self.posted[member][lane] = True
        self.advance(member, [lane])

    def head_arrives(self, member, lane, duration, line):
        end = self.receiver_free[member, line] = max(self.now, self.receiver_free[member, line]) + duration
        self.at(end, "message_comes", member, lane)
