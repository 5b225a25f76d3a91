"""The `radixrt` command. Only typer is imported here: what a command needs, it imports when it runs."""

from radixrt.cli.app import app, main

__all__ = ["app", "main"]
