"""An idle network like tests.workload.alpha_beta, with NICs and NVLinks: waits of lanes, launch, two ports each."""

from tests.workload.alpha_beta import Network


class HostsNetwork(Network):
    """Members send inside their host over one port and to others over another; messages take turns whole."""

    def __init__(self, schedules, shape, size):
        super().__init__(schedules, 0, size, None, None)
        self.shape, self.now = shape, float(schedules.launch_ps[0])
        self.waits = [list(self.waits_of(schedules, member)) for member in range(shape.members)]
        self.due = set()

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
        start = max(self.now, self.sender_free[member, far])
        self.sender_free[member, far] = start + duration
        path = self.shape.outside_ps if far else self.shape.inside_ps
        self.at(start + path, "head_arrives", step.send_peer, step.send_lane, duration, far)
        self.posted[member][lane] = True
        self.advance(member)

    def head_arrives(self, member, lane, duration, far):
        end = self.receiver_free[member, far] = max(self.now, self.receiver_free[member, far]) + duration
        self.at(end, "message_comes", member, lane)
