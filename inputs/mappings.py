"""JSON and YAML of mappings, lists and texts, without the types and aliases of YAML: models give values their types."""

import json
from typing import Any

import yaml

from nadi.inputs.files import shown

MAX_LEVELS = 100  # nested values; PyYAML recurses several times per level, and Python allows 1,000 levels


class _Loader(yaml.BaseLoader):
    """YAML of texts, lists and mappings."""

    levels = 0  # of values around the one that is read

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias; expected values")
        self.levels += 1
        if self.levels > MAX_LEVELS:
            raise yaml.YAMLError(f"values within more than {MAX_LEVELS} others, expected fewer")
        node = super().compose_node(parent, index)
        self.levels -= 1
        return node


def parse_mapping(text: str) -> dict[str, Any]:
    """Return the mapping that a JSON or YAML text holds; ValueError, with a reason in one line, if it holds none."""
    try:
        content = json.loads(text) if text.lstrip()[:1] == "{" else yaml.load(text, _Loader)  # noqa: S506 - makes texts only
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split()) or "values are nested too deeply"
        raise ValueError(shown(reason)[:200]) from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ValueError("no mapping of keys to values")
    return content
