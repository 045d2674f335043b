"""Names of parameters, without what wrappers put into them."""

from __future__ import annotations

# What torch.compile and PyTorch's checkpoint wrapper put into the names of what they wrap.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


def plain_name(name: str) -> str:
    """The name that a parameter has in its model unwrapped."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
