"""Whether the shipped keys are those of the installed peer."""

from __future__ import annotations

import importlib.metadata

from tests.validators.peer_keys import PEERS

from gpuwise.export.targets import target_of


def schema_differences(name: str) -> list[str]:
    """What differs between the keys that gpuwise ships and those of the installed version, in words."""
    schema = target_of(name).schema
    installed = importlib.metadata.version(schema.peer)
    if installed != schema.version:
        return [f"{schema.peer} {installed} is installed, and its keys were read from {schema.version}: requirements.txt"]
    keys = PEERS[name]()
    print(f"{schema.peer} {installed}: {len(keys)} keys, as shipped" if keys == dict(schema.keys) else f"{name}: keys differ")
    return [f"{name}: {key} has changed" for key in sorted(keys.keys() ^ schema.keys.keys())]
