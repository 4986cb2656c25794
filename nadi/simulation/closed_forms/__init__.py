"""Closed forms (docs/explanation/fidelity.md): times of collectives and messages on an idle fabric, and runs of them.

Modules in reading order: `lone_message` computes the time of a message alone on its path; `flows` compares each message
of a run with that time. `playing` simulates the steps of one collective on its members' own ports; `collective` returns
the simulated time or that of a formula. `link_bound` computes a lower bound from link rates. `position`, `curves` and
`costs` compute each kind of group once, at any size. `advancing` runs programs whose collectives and messages take
given times; `sharing` and `running` prepare and run programs with the times of closed forms. `sent_bytes` computes the
bytes that links would send.
"""
