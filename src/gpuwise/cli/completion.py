"""gpuwise completion bash|zsh|fish"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion", short_help="A shell's completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of a shell: commands, flags, presets and chips.

    \b
    bash: gpuwise completion bash >> ~/.bashrc
    zsh:  gpuwise completion zsh >> ~/.zshrc
    fish: gpuwise completion fish > ~/.config/fish/completions/gpuwise.fish
    """
    from gpuwise.cli.main import main

    script = get_completion_class(shell)
    assert script is not None, shell
    click.echo(script(main, {}, "gpuwise", "_GPUWISE_COMPLETE").source())
