"""The program's entry: the table of commands, each imported only when it is called, and how errors are shown."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sys
from typing import Any

import click

from layerkit import __version__
from layerkit._util.files import DENIED, NO_SPACE, translate_os_error
from layerkit._util.text import did_you_mean
from layerkit.errors import InputError, LayerkitError

SECTIONS: dict[str, dict[str, str]] = {
    "Build and publish": {
        "build": "compile a Layerfile or Dockerfile into layers",
        "import": "make a base from a tar archive or a directory",
        "publish": "give a built layer its immutable version in the store",
    },
    "Use": {
        "run": "run a command in a stack",
        "mount": "mount a stack lazily",
        "umount": "undo mounts",
        "status": "what this host has mounted, and what went wrong",
    },
    "Look": {
        "ls": "list layers",
        "inspect": "a layer's config, sizes and facts",
        "files": "list the files of a layer or stack",
        "cat": "print files of a layer or stack",
        "diff": "compare two layers",
        "verify": "check every byte of layers or of the whole store",
        "df": "what takes how much space",
    },
    "Look after": {
        "doctor": "what this host can do, and what to install",
        "rm": "remove references",
        "prune": "free what can be made again: step cache, host cache",
        "hostd": "the host daemon (started on demand)",
    },
}
_BAD_PATHS = {errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
COMMANDS = {name: text for section in SECTIONS.values() for name, text in section.items()}


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own, so that one command's imports cost the others nothing."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"layerkit.cli.{cmd_name}_command")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with near names where there is no such command."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            hint = did_you_mean(args[0], COMMANDS) or "`layerkit --help` lists the commands"
            ctx.fail(f"no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by section, without importing them."""
        for title, rows in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(rows.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="layerkit")
def program() -> None:
    """Compile Layerfiles into EROFS layers, keep their chunks once, mount them lazily, run them.

    References look like base/debian:12, workspace/app:dev or toolkit/node@sha256:…; a stack is several of them, joined
    by commas: base/debian:12,toolkit/node. Ranges hold < or >, so put them in quotes: 'base/debian>=12,<14'.
    """


def show_error(error: LayerkitError, *, as_json: bool) -> None:
    """Print an error for people on stderr, and for programs as the last line of stdout."""
    if as_json:
        from layerkit.cli.output import print_json

        print_json({"error": {"code": error.code, "message": error.message, "where": error.where, "hint": error.hint}})
    click.echo(f"{click.style('error:', fg='red', bold=True)} {error}", err=True)
    if error.excerpt:
        click.echo(error.excerpt, err=True)
    if error.hint:
        click.echo(f"{click.style('hint:', fg='cyan')} {error.hint}", err=True)


def main(argv: list[str] | None = None) -> None:
    """Run the command line; always ends in SystemExit."""
    words = sys.argv[1:] if argv is None else argv
    # Commands are short, and the trees that some of them hold have no cycles: walking all that again and again took
    # an eighth of an unchanged import and a twentieth of a `run` (measured). What is no cycle is freed all the same.
    gc.set_threshold(50_000, 20, 50)
    _open_standard_streams()
    _warn_of_eaten_range()
    try:
        result: Any = program.main(args=words, prog_name="layerkit", standalone_mode=False)
        if sys.stdout is not None:  # Python's word for a stream that the caller closed
            sys.stdout.flush()
    except LayerkitError as error:
        show_error(error, as_json=_wants_json(words))
        sys.exit(_exit_code(error, words))
    except click.ClickException as error:
        error.show()
        sys.exit(125 if words[:1] == ["run"] else error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        failure = _users_mistake(error)
        if failure is None:
            raise
        if error.filename is None:
            # What is still buffered for a full output must not fail once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        show_error(failure, as_json=_wants_json(words) and error.filename is not None)
        sys.exit(_exit_code(failure, words))
    sys.exit(result if isinstance(result, int) else 0)


def _wants_json(words: list[str]) -> bool:
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def _users_mistake(error: OSError) -> LayerkitError | None:
    """The error to show where a file system refused what the user named; None for what is ours."""
    where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else ""
    if error.errno in NO_SPACE | DENIED:
        return translate_os_error(error, where)
    if error.errno in _BAD_PATHS and where:
        return InputError(error.strerror or "not a usable path", where=where)
    return None


def _open_standard_streams() -> None:
    """Give closed standard streams a number each, so that no file of ours becomes a command's input or output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free


def _warn_of_eaten_range() -> None:
    """Say so when a shell took the > of an unquoted range: base/debian>=12 writes into a file called =12."""
    try:
        name = os.readlink("/proc/self/fd/1").rpartition("/")[2]
    except OSError:
        return
    if name.startswith("=") and name[1:2].isdigit():
        click.echo(
            f"{click.style('warning:', fg='yellow')} the output goes into the file {name}: the shell took the > of a "
            "range; put ranges in quotes: 'base/debian>=12'",
            err=True,
        )


def _exit_code(error: LayerkitError, words: list[str]) -> int:
    # `run` keeps 1 to 123 for the command inside, as docker run does: layerkit's own failures are 125.
    if words[:1] == ["run"] and error.exit_code < 124:
        return 125
    return error.exit_code
