"""What may import what, and what importing gpuwise brings in."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import gpuwise
from gpuwise.cli.main import VERBS

ROOT = Path(gpuwise.__file__).parent
CONTRIBUTING = ROOT.parents[1] / "CONTRIBUTING.md"
# From the top of the house down: a package imports only what stands before it. Packages on one line are one floor.
FLOORS = [
    {
        "atomic",
        "errors",
        "json_types",
        "lazy",
        "plain_files",
        "printed",
        "units",
        "version",
        "yaml_text",
        "notes",
        "strategy",
        "step_settings",
        "plan_settings",
        "serving_settings",
        "launch_settings",
    },
    {"hardware"},
    {"refresh"},
    {"trace"},
    {"cost"},
    {"plan"},
    {"export"},
    {"serving"},
    {"launch"},
    {"results"},
    {"report"},
    {"runs"},
    {"job"},
    {"runtime"},
    {"tracing"},
    {"measure"},
    {"api"},
    {"cli"},
    {"__main__"},
]
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}
# Floors above PyTorch, and the two rooms where the halves meet.
TORCH_FREE = set().union(*FLOORS[: FLOORS.index({"job"})]) | {"api", "cli"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports(path: Path) -> set[str]:
    """Modules of gpuwise that a file imports anywhere: inside functions and for the type checker, too."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                imported.add(whole if whole in MODULES else node.module or "")
    return {name for name in imported if name.split(".")[0] == "gpuwise"}


def in_a_fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_package_has_its_floor():
    assert {name.split(".")[1] for name in MODULES if "." in name} <= set(FLOOR)


@pytest.mark.skipif(not CONTRIBUTING.exists(), reason="not run from the source tree")
def test_the_map_of_the_house_names_every_room_from_the_top_down():
    lines = CONTRIBUTING.read_text(encoding="utf-8").split("| room |")[1].split("\n\n")[0].splitlines()
    rooms = [name for line in lines for name in re.findall(r"`(\w+)(?:/|\.py)`", line.split("|")[1])]
    assert set(rooms) == set(FLOOR) - {"__main__"}
    assert [FLOOR[name] for name in rooms] == sorted(FLOOR[name] for name in rooms)


@pytest.mark.parametrize("name", [name for name in MODULES if name != "gpuwise"])
def test_a_package_imports_only_packages_above_it(name: str):
    package = name.split(".")[1]
    for imported in imports(MODULES[name]):
        assert imported != "gpuwise", f"{name} imports the whole package, which stands below every room"
        other = imported.split(".")[1]
        assert other == package or FLOOR[other] <= FLOOR[package], f"{name} imports {imported}"


def packages_around(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:depth]) for depth in range(1, len(parts))}


def test_no_circular_imports():
    """Not through a package's own file either, which runs before its modules: so each module can be imported first."""
    graph = {}
    for name, path in MODULES.items():
        imported = imports(path) & set(MODULES) - {name}
        around = {package for other in imported for package in packages_around(other)}
        graph[name] = imported | around - packages_around(name) - {name}
    list(TopologicalSorter(graph).static_order())  # raises CycleError with the cycle


def test_the_torch_free_half_imports_without_torch():
    names = [name for name in MODULES if name != "gpuwise" and name.split(".")[1] in TORCH_FREE]
    assert len(names) > 40
    in_a_fresh_python(
        "import importlib, sys\n"
        "for name in ('torch', 'transformers', 'timm', 'safetensors'): sys.modules[name] = None\n"
        f"for name in {names!r}: importlib.import_module(name)"
    )


def test_import_gpuwise_loads_neither_numpy_nor_torch_nor_rich():
    heavy = "import sys, gpuwise; print([m for m in ('numpy', 'torch', 'rich', 'click') if m in sys.modules])"
    assert in_a_fresh_python(heavy) == "[]"


def test_every_public_name_resolves():
    for name in gpuwise.__all__:
        assert getattr(gpuwise, name) is not None, name
    assert set(gpuwise.__all__) <= set(dir(gpuwise))
    beside_verbs = set(gpuwise.__all__) - {verb.replace("-", "_") for verb in VERBS}
    assert 20 <= len(beside_verbs) <= 27


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gpuwise.nonsense


@pytest.mark.parametrize(
    "first",
    [
        "import gpuwise.plan.search",
        "import gpuwise; gpuwise.plan",
        "from gpuwise.plan.request import Request",
        "from gpuwise import plan",
        "import gpuwise.api",
        "import gpuwise, importlib; importlib.import_module('gpuwise.plan')",
    ],
)
def test_plan_is_both_a_package_and_a_function_in_every_order(first: str):
    code = (
        f"{first}\n"
        "import gpuwise, gpuwise.plan.search, gpuwise.plan as package\n"
        "from gpuwise import plan\n"
        "from gpuwise.errors import InputError\n"
        "assert callable(gpuwise.plan) and plan is gpuwise.plan is package\n"
        "assert gpuwise.plan.search.plan is not gpuwise.plan and gpuwise.plan.Request\n"
        "try: gpuwise.plan('tabular-mlp', budget='lots')\n"
        "except InputError as error: print(error.what)"
    )
    assert "as an amount of dollars" in in_a_fresh_python(code)


def test_the_version_is_that_of_the_package():
    import tomllib

    pyproject = ROOT.parents[1] / "pyproject.toml"
    if not pyproject.exists():
        pytest.skip("not run from the source tree")
    assert tomllib.loads(pyproject.read_text())["project"]["version"] == gpuwise.__version__


@pytest.mark.parametrize("name", ["gpuwise.api", "gpuwise.hardware", "gpuwise.plan"])
def test_a_package_offers_what_it_says_and_nothing_else(name: str):
    package = importlib.import_module(name)
    for offered in package.__all__:
        assert getattr(package, offered) is not None
    with pytest.raises(AttributeError, match=f"{name}.*no attribute 'nothing'"):
        _ = package.nothing
