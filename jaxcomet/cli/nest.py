"""The loop nest of a mapping as a tree on the console."""

from rich.text import Text
from rich.tree import Tree

from jaxcomet.mapping import (
    Collective,
    Compute,
    Mapping,
    Node,
    Spatial,
    Temporal,
    children,
    describe,
)

_GUIDES = "bright_black"


def nest(mapping: Mapping) -> Tree:
    """The mapping's tree, one line a node; loops of one step are left out (`mapping.describe`)."""
    return _branch(mapping.tree, mapping)


def _branch(node: Node, mapping: Mapping) -> Tree:
    line = describe(node, mapping.factors).partition("\n")[0]
    tree = Tree(Text(line, style=_style(node)), guide_style=_GUIDES)
    for child in children(node):
        tree.children.append(_branch(child, mapping))
    return tree


def _style(node: Node) -> str:
    match node:
        case Temporal():
            return "bold"
        case Spatial():
            return "cyan"
        case Compute():
            return "green"
        case Collective():
            return "magenta"
        case _:
            return ""
