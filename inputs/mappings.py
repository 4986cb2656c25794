"""JSON and YAML of mappings, lists and texts, without the types and aliases of YAML: models give values their types."""

import json
from typing import Any

import yaml

from nadi.inputs.files import shown


class _Loader(yaml.BaseLoader):
    """YAML of texts, lists and mappings."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias; expected values")
        return super().compose_node(parent, index)


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
