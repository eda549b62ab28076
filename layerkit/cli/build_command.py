"""`layerkit build [-f FILE] CONTEXT -t REF`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from layerkit.cli.output import json_option, print_json
from layerkit.cli.variables import read_variables
from layerkit.errors import InputError, MissingError
from layerkit.ids import Platform, Ref

if TYPE_CHECKING:
    from layerkit.build.compile import BuildResult

FILES = ("Layerfile", "Dockerfile")


@click.command("build")
@click.argument("context", type=click.Path(path_type=Path), default=".")
@click.option("-f", "--file", type=click.Path(path_type=Path), help="CONTEXT/Layerfile, else CONTEXT/Dockerfile.")
@click.option("-t", "--tag", "ref_text", metavar="REF", help="Name of the target's layer: KIND/NAME[:VERSION].")
@click.option("--build-arg", "build_args", multiple=True, metavar="NAME[=VALUE]", help="A value for an ARG.")
@click.option("--target", default="", help="The stage to build; the last one if left out.")
@click.option("--all", "emit_all", is_flag=True, help="Also make the layers of the other stages that have LAYER.")
@click.option("--platform", "platform_text", metavar="OS/ARCH", help="What to build for; this machine if left out.")
@click.option("--no-cache", is_flag=True, help="Run every step, whatever is kept; replace what is damaged.")
@click.option("--host-trust", is_flag=True, help="Show RUN the host's CA bundle (behind an inspecting proxy).")
@click.option("--allow", "allowed", multiple=True, type=click.Choice(["host-network"]), help="What RUN may ask for.")
@click.option("--drop-outside", is_flag=True, help="Drop what a toolkit writes outside of its PREFIX.")
@json_option
def command(
    context: Path, file: Path | None, ref_text: str | None, build_args: tuple[str, ...], target: str, emit_all: bool,
    platform_text: str | None, no_cache: bool, host_trust: bool, allowed: tuple[str, ...], drop_outside: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Compile a Layerfile, or an ordinary Dockerfile, into layers.

    The layer gets a local, mutable name; `layerkit publish` makes a version of it immutable.

    \b
    layerkit build -t workspace/app .
    layerkit build -f tools/Layerfile --target node tools/
    """
    from layerkit import settings
    from layerkit.build.compile import BuildOptions, Compiler
    from layerkit.build.emitter import EmissionOptions
    from layerkit.build.layerfile.parser import parse_layerfile
    from layerkit.build.scope import proxy_variables
    from layerkit.build.stages import plan_build
    from layerkit.build.step_cache import keep_within_budget, step_cache_in_use
    from layerkit.build.step_kit import StepOptions
    from layerkit.cli.executors import LazyExecutor
    from layerkit.cli.progress import open_progress
    from layerkit.cli.stores import open_default_store, open_knowledge

    path = _find_file(context, file)
    layerfile = parse_layerfile(_read_file(path), str(path))
    platform = Platform.parse(platform_text) if platform_text else Platform.host()
    given = read_variables(build_args, "--build-arg")
    epoch = settings.source_date_epoch(given.get("SOURCE_DATE_EPOCH"))
    budget_bytes = settings.step_cache_budget_bytes()
    plan = plan_build(layerfile, build_args=given, target=target, platform=platform, emit_all=emit_all)
    steps = StepOptions(
        platform=platform, mtime_ns=(epoch or 0) * 1_000_000_000, host_trust=host_trust,
        host_network="host-network" in allowed, extra_env={**settings.proxy_environment(), **proxy_variables(given)},
        use_cache=not no_cache,
    )  # fmt: skip
    emission = EmissionOptions(Ref.parse(ref_text) if ref_text else None, epoch, drop_outside)
    store = open_default_store(create=True)
    knowledge = open_knowledge(store)
    progress = open_progress(as_json=as_json)
    try:
        with step_cache_in_use():
            result = Compiler(
                store, knowledge, layerfile=layerfile, context=context, layerfile_path=path, executor=LazyExecutor(),
                options=BuildOptions(steps, emission), report=progress,
            ).run(plan)  # fmt: skip
    finally:
        progress.close()
    if result.cached_steps < result.steps or result.stored_bytes:
        keep_within_budget(store, knowledge, budget_bytes)
    _print_result(result, as_json=as_json)


def _print_result(result: BuildResult, *, as_json: bool) -> None:
    built = result.layers[-1]
    if as_json:
        print_json({"result": {
            "ref": str(built.ref), "digest": built.digest, "steps": result.steps,
            "cached_steps": result.cached_steps, "stored_bytes": result.stored_bytes,
            "layers": [{"ref": str(layer.ref), "digest": layer.digest} for layer in result.layers],
        }})  # fmt: skip
        return
    click.echo("\n".join(f"{layer.ref}  {layer.digest}" for layer in result.layers))


def _find_file(context: Path, file: Path | None) -> Path:
    if not context.is_dir():
        raise InputError("the build context is not a directory", where=str(context))
    if file is not None:
        if not file.is_file():
            raise MissingError("there is no such Layerfile", where=str(file))
        return file
    for name in FILES:
        if (context / name).is_file():
            return context / name
    raise MissingError(
        "no Layerfile and no Dockerfile here", where=str(context), hint="name one with -f; docs/layerfile.md shows one"
    )


def _read_file(path: Path) -> bytes:
    """No more than it takes to see that the file is too large."""
    from layerkit.build.layerfile.source import MAX_BYTES

    with open(path, "rb") as file:
        return file.read(MAX_BYTES + 1)
