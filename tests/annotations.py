"""An import hook that checks annotations, and the dtypes in them, at every call.

The one idea: beartype is put under all other decorators, so that those see a function like any
other, and over `dataclass`, whose constructors are checked too.

jaxtyping's own hook compares the named axes of several arguments besides, which makes every call
ten times slower; no annotation of jaxcomet names an axis (tests/test_annotations.py).
"""

import ast
import dataclasses
import functools
import inspect
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Any

from beartype import beartype

_NAME = "_checked_by_tests"
"""What the decorator is called in the modules that are checked."""

_templates: dict[CodeType, tuple[FunctionType, dict[str, Any]]] = {}
"""A checked closure and its annotations by code: beartype takes longer for one than most of them
run, and they are made anew with every call of the function around them."""


def _checked(made: Any) -> Any:
    if isinstance(made, FunctionType):
        return _closure(made) if "<locals>" in made.__qualname__ else beartype(made)
    if dataclasses.is_dataclass(made) and "__init__" in vars(made):
        setattr(made, "__init__", beartype(vars(made)["__init__"]))  # noqa: B010 - for pyright
    return made


def _closure(made: FunctionType) -> Any:
    """As `beartype`, but from the template where one of the same code and annotations was seen."""
    template, annotations = _templates.get(made.__code__, (None, None))
    if template is None or annotations != made.__annotations__:
        checked: Any = beartype(made)
        if checked is not made and made in (checked.__kwdefaults__ or {}).values():
            _templates[made.__code__] = checked, made.__annotations__
        return checked
    again = FunctionType(template.__code__, template.__globals__)
    first = inspect.unwrap(template)
    given = template.__kwdefaults__ or {}
    again.__kwdefaults__ = {k: made if v is first else v for k, v in given.items()}
    return functools.update_wrapper(again, made)


class _Decorated(ast.NodeTransformer):
    def __init__(self) -> None:
        self._late: list[ast.stmt] = []

    def visit_Module(self, node: ast.Module) -> ast.AST:
        """With the imports for annotations alone, which stand as text, after all others."""
        self.generic_visit(node)
        node.body += self._late
        return node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            self._late += node.body
            return None
        return self.generic_visit(node)

    def _at(self, node: ast.stmt) -> ast.expr:
        return ast.copy_location(ast.Name(_NAME, ast.Load()), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list.append(self._at(node))
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list.insert(0, self._at(node))
        return self.generic_visit(node)


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """From the source, not from the bytecode that other runs share."""
        path = self.get_filename(fullname)
        tree = _Decorated().visit(ast.parse(self.get_data(path), path))
        return compile(tree, path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, _NAME, _checked)
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def __init__(self, package: str):
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self._package:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


def check(package: str) -> None:
    """Checks the annotations of all modules of a package that are imported from now on.

    A violation raises `beartype.roar.BeartypeCallHintViolation`.
    """
    sys.meta_path.insert(0, _Finder(package))
