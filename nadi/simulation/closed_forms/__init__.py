"""Closed forms (docs/explanation/fidelity.md): times of collectives and messages on an idle fabric, and runs of them.

Modules in reading order: `lone_message`, a message alone on its path; `isolated` and `collective`, a collective alone
on the fabric, its simulated time or that of a formula; `position` and `costs`, each kind of group once, at any size;
`advancing` and `running`, programs whose collectives and messages take these times; `sent_bytes`, the bytes that links
would send.
"""
