"""Parse Python source and find its uses of other code's private names."""

import ast
import gc
from collections.abc import Iterator


def parse(source: str) -> ast.Module:
    """Return the syntax tree, without a garbage collection in between.

    A finalizer that runs in a collection corrupts CPython 3.11's recursion depth
    (python/cpython#106905).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if collects:
            gc.enable()


BY_TEXT = {"attrgetter", "delattr", "getattr", "hasattr", "patch", "setattr"}
"""Functions and methods that take the name of an attribute as text."""

DOCUMENTED = {"os._exit"}
"""Public names that look private."""


def reached(source: str) -> list[tuple[int, str]]:
    """Return line and name of private names that ``source`` uses and does not define."""
    tree = parse(source)
    own = set(_defined(tree))
    found: list[tuple[int, str]] = []
    for item in ast.walk(tree):
        names: list[str] = []
        match item:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if name in own:
                continue
            case ast.Attribute(attr=name) if ast.unparse(item) not in DOCUMENTED:
                names = [name]
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in BY_TEXT:
                given = [*item.args, *(keyword.value for keyword in item.keywords)]
                names = [str(each.value) for each in given if isinstance(each, ast.Constant)]
            case ast.ImportFrom(module=module):
                names = [f"{module}.{alias.name}" for alias in item.names]
            case ast.Import():
                names = [alias.name for alias in item.names]
        found += [(item.lineno, name) for name in names if _is_private(name)]
    return sorted(found)


def _defined(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a file's classes define in their bodies or on ``self``."""
    for item in ast.walk(tree):
        match item:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
            case ast.ClassDef(body=body):
                for each in body:
                    match each:
                        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                            yield name
                        case ast.Assign(targets=[ast.Name(id=name)]):
                            yield name
                        case ast.AnnAssign(target=ast.Name(id=name)):
                            yield name


def _is_private(dotted: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in dotted.split("."))
