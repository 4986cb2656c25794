"""Closed forms (docs/explanation/fidelity.md): times of collectives and messages on an idle fabric, and runs of them.

In reading order: `lone_message`, a message alone on its path; `flows`, that beside each message of a run. `playing`:
steps of a collective played on its members' own ports. `collective`: played, or told by a formula; `link_bound`, the
least that links allow. `standing`, `curves` and `costs`: each kind of group once, at any size. `advancing`: runs in
which all takes times that are given; `sharing` and `running`: runs in which these are closed forms. `sent_bytes`: what
links would send.
"""
