"""The command line: `shardex info`, `head`, `sql`, `index`, `verify` and others.

Each command is a few lines that call the library and print the result. Needs typer, which is imported here, so the
package itself does not import this room.

`commands`        the application and the commands for reading
`store_commands`  the commands for versions and integrity
`terminal`        common arguments, and printing as text or JSON
`demo`            the script of `shardex demo`
"""

from shardex.cli.commands import app, main

__all__ = ["app", "main"]
