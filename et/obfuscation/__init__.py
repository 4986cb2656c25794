"""Hiding what a trace says about a model, by a key: names, ids, groups, tags, shapes, sizes and times.

`obfuscate(table, disguise)` gives the trace in disguise; a `Obfuscation` is made of the key, the level of fidelity and
what all traces of a set use, so that all are hidden alike and still belong together.
docs/explanation/synthetic-traces.md says
what is hidden, how, and what an adversary still learns.
"""

from et.obfuscation.disguise import Obfuscation, obfuscate
from et.obfuscation.levels import LEVELS, Level, level_of
from et.obfuscation.secret import SecretKey, read_secret
from et.obfuscation.vocabulary import Vocabulary

__all__ = ["LEVELS", "Level", "Obfuscation", "SecretKey", "Vocabulary", "level_of", "obfuscate", "read_secret"]
