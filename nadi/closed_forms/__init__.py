"""Closed forms (docs/fidelity.md): what collectives and messages take on an idle fabric, and runs made of them.

In reading order: `lone_message`, a message alone on its path; `flows`, that beside each message of a run. `idle_paths`,
`idle_fabric`, `alike` and `played`: steps of a collective played on its members' own ports, by a few members where all
do the same. `collective`: played, or told by a formula; `link_bound`, the least that links allow. `standing`, `curves`
and `costs`: each kind of group once, at any size. `sharing` and `running`: runs in which all takes its closed form.
"""
