"""Print the size of the code, and fail where modules import each other in a circle.

An import counts wherever it stands: at the top, in a function, under ``TYPE_CHECKING``. One of a name counts
as one of the module that the name is, or else of the module or package that has it; that a package is
imported before its modules does not count.

    python .ci/house.py [ROOT]
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

CODE = ("pslib", "launch", "rec_models", "cython_ext")
IMPORTING = ("pslib", "launch", "rec_models")
SUFFIXES = {".py", ".pyx", ".pxd", ".pyi", ".h"}
LARGEST = 10

Graph = Mapping[str, set[str]]


def sources(folder: Path) -> list[Path]:
    """Source files below a folder, in order."""
    return sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())


def lines_of(path: Path) -> int:
    """Lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def modules_of(root: Path, packages: Iterable[str]) -> dict[str, Path]:
    """Files of Python modules by their names."""
    found = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_by(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules of ``modules`` that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                sys.exit(f"{path}:{node.lineno}: expected an absolute import")
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else str(node.module) for name in whole]
        else:
            continue
        yield from (name for name in names if name in modules and modules[name] != path)


def reached_from(start: str, graph: Graph) -> set[str]:
    """Modules that are imported from ``start`` on, by any number of steps."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for name in graph[waiting.pop()] - reached:
            reached.add(name)
            waiting.append(name)
    return reached


def circles_of(graph: Graph) -> list[list[str]]:
    """Sets of modules each of which imports all others of its set: strongly connected components."""
    reached = {name: reached_from(name, graph) for name in graph}
    circles = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return [list(circle) for circle in sorted(circles)]


def main(root: Path) -> int:
    """Print sizes and circles; 1 where there is a circle."""
    files = [path for folder in CODE for path in sources(root / folder)]
    sizes = {path: lines_of(path) for path in files}
    tests = [path for path in sources(root / "tests") if path.suffix == ".py"]
    print(f"{sum(sizes.values())} lines of code in {len(files)} files: {', '.join(CODE)}")
    print(f"{sum(map(lines_of, tests))} lines of tests in {len(tests)} files")
    folders: Counter[Path] = Counter()
    many: Counter[Path] = Counter()
    for path, lines in sizes.items():
        folders[path.parent] += lines
        many[path.parent] += 1
    for folder, lines in sorted(folders.items(), key=lambda item: (-item[1], item[0]))[:LARGEST]:
        print(f"  {folder.relative_to(root)}: {lines} lines in {many[folder]} files")
    modules = modules_of(root, IMPORTING)
    graph = {name: set(imported_by(path, modules)) for name, path in modules.items()}
    circles = circles_of(graph)
    for circle in circles:
        print("modules that import each other:")
        for name in circle:
            print(f"  {name} imports {', '.join(sorted(graph[name] & set(circle)))}")
    print(f"{len(circles)} circles among {len(graph)} modules")
    return 1 if circles else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()))
