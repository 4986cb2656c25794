"""A model so small that its plans are searched in seconds, in the format of files of models."""

KEYS = {
    "layers": 4,
    "hidden": 1024,
    "heads": 8,
    "kv_heads": 4,
    "ffn": 2048,
    "vocab": 1024,
    "sequence": 512,
    "global_batch": 64,
}
EXPERTS = "[experts]\ncount = 4\ntop_k = 2\nffn = 512\n"


def write_model(folder, more="", **changes):
    """Write the model, with other values and further text, into a folder; gives the file. None = without the key."""
    path = folder / "tiny.toml"
    keys = {key: value for key, value in (KEYS | changes).items() if value is not None}
    path.write_text("".join(f"{key} = {value!r}\n" for key, value in keys.items()) + more)
    return path
