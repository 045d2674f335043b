"""Names of parameters without the prefixes of wrappers."""

from __future__ import annotations

# Prefixes that torch.compile and PyTorch's checkpoint wrapper add to names.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


def plain_name(name: str) -> str:
    """The name of a parameter in the unwrapped model."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
