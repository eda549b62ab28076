"""`layerkit run [--with TOOLKIT]… STACK -- CMD…`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from layerkit.cli.output import json_option, print_json
from layerkit.cli.signals import orderly_end
from layerkit.cli.stacks import mounted_stack, remove_dead_sandboxes, stack_words
from layerkit.cli.variables import read_variables
from layerkit.errors import HostError, InputError, NotRunnableError

if TYPE_CHECKING:
    from layerkit.runtime.container import CommandResult, Container
    from layerkit.runtime.spec import ContainerSpec
    from layerkit.runtime.stack import Composition

TIMED_OUT, NOBODY_READS = 124, 141
STDIN, STDOUT, STDERR = 0, 1, 2  # `main` has opened those that the caller closed


@click.command("run", context_settings={"ignore_unknown_options": False})
@click.argument("stack")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
@click.option("--with", "toolkits", multiple=True, metavar="TOOLKIT", help="A toolkit on top of the stack.")
@click.option("--cpus", type=float, help="Processors it may use, such as 1.5.")
@click.option("--memory", metavar="SIZE", help="Memory it may use, such as 512m or 4g.")
@click.option("--pids", type=int, default=512, help="Processes it may have.")
@click.option("-e", "--env", "env_words", multiple=True, metavar="NAME=VALUE", help="A variable for the command.")
@click.option("-w", "--workdir", default="", help="Where the command starts.")
@click.option("-u", "--user", default="", metavar="USER[:GROUP]", help="As whom it runs.")
@click.option("-v", "--volume", "volumes", multiple=True, metavar="HOST:PATH[:ro]", help="Show a host folder inside.")
@click.option("--network", type=click.Choice(["none", "nat", "host"]), default="none", help="What it reaches.")
@click.option("--userns", type=click.Choice(["require", "off"]), default="require", help="User namespace of its own.")
@click.option("--host-trust", is_flag=True, help="Trust the certificates that the host trusts.")
@click.option("--timeout", type=float, metavar="SECONDS", help="Kill it after that long (exit code 124).")
@click.option("--prefetch", type=click.Choice(["all", "none"]), default="all", help="Fetch in the background, or not.")
@click.option("--allow-rebase", is_flag=True, help="Stack a workspace on a base it was not built on.")
@json_option
def command(stack: str, argv: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Run a command in a stack, in a container of its own that is gone afterwards.

    The exit code is the command's; 124 timeout, 125 layerkit's own failure, 126 not executable, 127 not found,
    128+N ended by signal N.

    \b
    layerkit run base/debian:12 -- cat /etc/os-release
    layerkit run --with toolkit/python workspace/app -- pytest -q
    """
    from layerkit.fuse.client import HostClient
    from layerkit.runtime.container import Container

    words = stack_words(stack, options["toolkits"])
    env = read_variables(options["env_words"], "--env")
    with orderly_end(), HostClient.connect() as client, mounted_stack(
        client, words, prefetch=options["prefetch"], env=env, allow_rebase=options["allow_rebase"]
    ) as (_, composition):
        command_line = argv or _default_command(composition)
        spec = _spec(composition, options)
        remove_dead_sandboxes()
        with Container.start(spec) as sandbox:
            return _run(sandbox, command_line, options["timeout"], as_json=as_json)


def _run(sandbox: Container, argv: tuple[str, ...], timeout_s: float | None, *, as_json: bool) -> int:
    outputs: dict[str, Any] = {} if as_json else {"stdout": STDOUT, "stderr": STDERR}
    try:
        done = sandbox.exec(argv, stdin=STDIN, timeout_s=timeout_s, **outputs)
    except NotRunnableError as error:
        click.echo(f"{click.style('error:', fg='red', bold=True)} {error}", err=True)
        return error.exit_code
    except BrokenPipeError:
        return NOBODY_READS
    except OSError as error:
        raise HostError(f"the command's input or output: {error.strerror}") from error
    if as_json:
        print_json({"result": _report(done)})
    elif done.oom_killed:
        click.echo("note: something was killed for lack of memory; --memory sets the limit", err=True)
    return TIMED_OUT if done.timed_out else done.exit_code


def _report(done: CommandResult) -> dict[str, Any]:
    return {
        "exit_code": done.exit_code, "signal": done.signal, "stdout": done.stdout.decode("utf-8", "replace"),
        "stderr": done.stderr.decode("utf-8", "replace"), "timed_out": done.timed_out, "oom_killed": done.oom_killed,
        "truncated": done.truncated, "duration_s": done.duration_s,
    }  # fmt: skip


def _default_command(composition: Composition) -> tuple[str, ...]:
    argv = (*(composition.entrypoint or ()), *(composition.cmd or ()))
    if not argv:
        raise InputError("the stack says no command", hint="give one after --: layerkit run STACK -- CMD")
    return argv


def _spec(composition: Composition, options: dict[str, Any]) -> ContainerSpec:
    from layerkit import settings
    from layerkit.runtime.limits import Limits
    from layerkit.runtime.skeleton import lowers_with_skeleton
    from layerkit.runtime.spec import ContainerSpec, Mount

    memory = options["memory"]
    return ContainerSpec(
        lowers=lowers_with_skeleton(composition.layers, settings.home_dir()),
        env=composition.env,
        workdir=options["workdir"] or composition.workdir,
        user=options["user"] or composition.user,
        path_additions=composition.path_additions,
        limits=Limits(
            cpus=options["cpus"], memory_mb=_megabytes(memory) if memory is not None else None, pids=options["pids"]
        ),
        network=options["network"],
        mounts=[Mount.parse(text) for text in options["volumes"]],
        userns=options["userns"],
        host_trust=options["host_trust"],
    )  # fmt: skip


def _megabytes(text: str) -> int:
    number, unit = text[:-1], text[-1:].lower()
    factors = {"m": 1, "g": 1024}
    if unit.isdigit():
        number, unit = text, ""
    try:
        size = int(number) >> 20 if not unit else int(number) * factors[unit]
    except (ValueError, KeyError) as error:
        raise InputError(f"not a size of memory: {text!r}", hint="write bytes, or a number with m or g") from error
    if size < 1:
        raise InputError(f"{text} is less than 1 MiB of memory")
    return size
