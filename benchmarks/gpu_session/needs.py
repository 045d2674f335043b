"""Packages the session needs, and those that some of its rows need. Imports nothing but Python's own library."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

# Module -> what pip calls it.
NEEDED = {
    "torch": "torch>=2.11",
    "numpy": "numpy",
    "click": "click",
    "rich": "rich",
    "tomli_w": "tomli-w",
    "safetensors": "safetensors",
}
WANTED = {
    "pynvml": "nvidia-ml-py",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "peft": "peft",
    "torchao": "torchao",
    "bitsandbytes": "bitsandbytes",
}


def there(module: str) -> bool:
    return find_spec(module) is not None


def missing(modules: dict[str, str]) -> str:
    """A line with the command that installs what is not there; "" where all is."""
    names = [package for module, package in modules.items() if not there(module)]
    if not names:
        return ""
    quoted = " ".join(f'"{name}"' if ">" in name else name for name in names)
    return f"not there: {', '.join(names)} (python -m pip install {quoted})"


def versions() -> dict[str, str]:
    """Of what is there."""
    results = {}
    for package in [name.partition(">")[0] for name in (*NEEDED.values(), *WANTED.values())] + ["triton"]:
        try:
            results[package] = version(package)
        except PackageNotFoundError:
            continue
    return results
