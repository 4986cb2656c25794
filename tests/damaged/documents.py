"""Documents with other values: every place of a JSON document, and values that may surprise a reader."""

import copy

VALUES = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**53 + 1,
    2**63,
    -(2**63),
    10**30,
    0.5,
    -1.5,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "x",
    "12",
    "1e400",
    "9" * 5000,
    "a\nb",
    "\ud800",
    "\x1b[31m",
    [],
    [[]],
    [1, "2", None],
    {},
    {"a": {"b": []}},
)


def damage_document(rng, document):
    """Replace, remove or copy a few values of a JSON document in place; returns a description."""
    said = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(document))
        if not places:
            break
        path, parent, key = rng.choice(places)
        if rng.random() < 0.3:
            said.append(f"{path} removed")
            del parent[key]
        else:
            value = copy.deepcopy(rng.choice(VALUES) if rng.random() < 0.8 else rng.choice(places)[1])
            said.append(f"{path} = {str(value)[:40]!r}")
            parent[key] = value
    return "; ".join(said)


def _places(document, path=""):
    """Every value within a document: its path, what holds it, and its key there."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(items):
        yield f"{path}/{key}", document, key
        if isinstance(value, (dict, list)):
            yield from _places(value, f"{path}/{key}")
