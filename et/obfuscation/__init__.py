"""Obfuscation, with a secret key, of names, ids, groups, tags, shapes, sizes and times in a trace.

`obfuscate(table, obfuscation)` returns the obfuscated trace. An `Obfuscation` is made from the key, the level of
fidelity and the vocabulary of all traces of a set, so that equal values are replaced equally and the traces still fit
together. docs/explanation/synthetic-traces.md describes what is hidden, how, and what an adversary can still learn.
"""

from nadi.et.obfuscation.obfuscating import LEVELS, Level, Obfuscation, Vocabulary, level_of, obfuscate
from nadi.et.obfuscation.secret import SecretKey, read_secret
