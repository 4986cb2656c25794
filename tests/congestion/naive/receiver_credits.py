"""Credits of receivers (RCCC) in plain Python: senders, one receiver and the switch between them, one event at a time.

Written from docs/explanation/fabric.md and uet-htsim's description of its pull pacer. Nothing is lost, and control
packets go the other way than data, so each port is a queue of packets of one kind.
"""

import heapq
import math
from collections import deque
from types import SimpleNamespace

QUANTUM = 256
PULL_PACKETS = 4
PULL_RATE = 0.99
EMPTY_QUANTA = 4


class Incast:
    """An incast over a star, of one message from each sender.

    Attributes:
        done_ps: Completion time of each sender's message at the receiver.
        pulls: Grants that the receiver has sent.
    """

    def __init__(self, sizes, starts_ps, *, window, psb, delay_ps, mtu, header, ack):
        self.window, self.psb, self.delay_ps, self.mtu, self.header, self.ack = window, psb, delay_ps, mtu, header, ack
        self.full = mtu + header
        self.events, self.count, self.now = [], 0, 0
        self.free_ps = {}  # of each port: time from which it is idle
        self.done_ps, self.pulls = {}, 0
        self.senders = [SimpleNamespace(left=size, credit=0, granted=0, guesses=True) for size in sizes]
        self.flows = [SimpleNamespace(owed=0, granted=0, got=0, size=size) for size in sizes]
        self.asking, self.served = deque(), deque()
        self.pull_at = 0  # time from which the pacer may grant again
        self.has_event = False
        for number, start in enumerate(starts_ps):
            self.at(start, self.begin, number)

    def run(self):
        while self.events:
            self.now, _, _, act, arguments = heapq.heappop(self.events)
            act(*arguments)
        return self

    def at(self, time_ps, act, *arguments):
        # Choice: at one time, a grant comes before what arrives
        heapq.heappush(self.events, (time_ps, act != self.grant, self.count, act, arguments))
        self.count += 1

    def hop(self, port, size, act, *arguments):
        """Send a packet from a port when it is idle; `act` follows when the last bit has arrived."""
        begin = max(self.now, self.free_ps.get(port, 0))
        self.free_ps[port] = begin + round(size * self.psb)
        self.at(self.free_ps[port] + self.delay_ps, act, *arguments)

    # Senders

    def begin(self, number):
        self.senders[number].credit = self.window
        self.send(number)

    def send(self, number):
        sender, port = self.senders[number], ("sender", number)
        # a packet is made when the port is idle, with the credit of that moment
        if sender.left == 0 or sender.credit <= 0 or self.free_ps.get(port, 0) > self.now:
            return
        payload = min(sender.left, self.mtu)
        sender.left -= payload
        sender.credit -= payload + self.header
        asks = None
        if sender.left > 0:
            need = min(math.ceil(sender.left / self.mtu) * self.full, self.window) - sender.credit
            if sender.guesses:
                need = max(need, self.full)
            asks = sender.granted + math.ceil(need / QUANTUM)
        size = payload + self.header
        self.hop(port, size, self.hop, "down", size, self.receive, number, payload, asks)
        self.at(self.free_ps[port], self.send, number)

    def hear(self, number, granted):
        """An acknowledgement (granted is None) or a grant."""
        sender = self.senders[number]
        if sender.guesses:
            sender.guesses = False
            sender.credit = min(sender.credit, 0)
        if granted is not None:
            sender.credit = min(sender.credit + (granted - sender.granted) * QUANTUM, self.window)
            sender.granted = granted
        self.send(number)

    # The receiver

    def answer(self, number, granted):
        self.hop("up", self.ack, self.hop, ("to", number), self.ack, self.hear, number, granted)

    def receive(self, number, payload, asks):
        flow = self.flows[number]
        if asks is not None and asks - flow.granted > flow.owed:
            flow.owed = asks - flow.granted
            if number not in self.asking:
                self.asking.append(number)
                self.wake()
        flow.got += payload
        if flow.got == flow.size:
            self.done_ps[number] = self.now
        self.answer(number, None)

    def wake(self):
        if not self.has_event and (self.asking or self.served):
            self.has_event = True
            self.at(max(self.now, self.pull_at), self.grant)

    def grant(self):
        self.has_event = False
        whole = PULL_PACKETS * self.mtu // QUANTUM
        if self.asking:
            number = self.asking.popleft()
            flow = self.flows[number]
            quanta = min(whole, max(flow.owed, 0))
            flow.owed -= quanta
            if flow.owed > 0:
                self.asking.append(number)
            elif number not in self.served:
                self.served.append(number)
        else:
            number = self.served.popleft()
            flow = self.flows[number]
            quanta = whole
            flow.owed -= quanta
            if -flow.owed * QUANTUM < self.window:
                self.served.append(number)
        flow.granted += quanta
        self.pulls += 1
        self.answer(number, flow.granted)
        self.pull_at = self.now + round(QUANTUM * self.psb / PULL_RATE * (quanta or EMPTY_QUANTA))
        self.wake()
