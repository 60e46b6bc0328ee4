"""YAML reader and writer: the core schema of YAML 1.2, unique keys, errors with line and column.

PyYAML reads YAML 1.1, where ``1e-3`` is a text, ``010`` is eight, ``on`` is true and the second of two equal
keys wins without an error. A file of learning rates and column names must not be read like that.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from pslib.errors import ConfigurationError

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_NULL = re.compile(r"~|null|Null|NULL|")
_BREAK = re.compile(r"[\n\r\x85\u2028\u2029]")


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2's core schema, which records duplicate keys."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.twice: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        first_line: dict[str, int] = {}
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                line = key_node.start_mark.line + 1
                if key_node.value in first_line:
                    self.twice.append(
                        f"{line}:{key_node.start_mark.column + 1}: key {key_node.value!r} stands twice; "
                        f"the first is on line {first_line[key_node.value]}, remove one"
                    )
                first_line.setdefault(key_node.value, line)
        return super().construct_mapping(node, deep)


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


def _exactly(pattern: re.Pattern[str]) -> re.Pattern[str]:
    return re.compile(rf"^(?:{pattern.pattern})$")


_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", _exactly(_NULL), ["~", "n", "N", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", _exactly(_BOOL), list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _exactly(_INT), list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _exactly(_FLOAT), list("-+.0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile("^<<$"), ["<"])
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes texts which YAML 1.1 or 1.2 would read as numbers.

    Line breaks in texts are written as escapes: all other styles would break the line of the file.
    """

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = '"' if _BREAK.search(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", _exactly(_INT), list("-+0123456789"))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _exactly(_FLOAT), list("-+.0123456789"))


def read_yaml(text: str, source: str) -> Any:
    """Read plain values (dict, list, str, int, float, bool, None) from one YAML document.

    Parameters
    ----------
    text : str
        Text of the document.
    source : str
        Source for messages: a file name or an option.

    Raises
    ------
    ConfigurationError
        ``source:line:column: problem``; all duplicate keys are named at once.
    """
    try:
        loader = _Loader(text)
        value = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        what = error.problem or error.context or "cannot be read"
        if what.startswith("but "):
            what = f"{error.context} {what}"
        if "'\\t'" in what:
            what += "; YAML wants spaces, not tabs"
        raise ConfigurationError(f"{source}{place}: not YAML: {what}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigurationError(f"{source}: not YAML: {first_line}") from error
    if loader.twice:
        raise ConfigurationError(*(f"{source}:{problem}" for problem in loader.twice))
    return value


def write_yaml(value: Any) -> str:
    """Write YAML text that `read_yaml` reads back to the same value, with keys in order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def flow_text(value: Any) -> str:
    """Write a value on one line, valid inside ``[...]``."""
    # As the only item of a list: after a bare value YAML writes its end-of-document mark.
    text = yaml.dump(
        [value], Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=True, width=1 << 30
    )
    return text.strip()[1:-1]
