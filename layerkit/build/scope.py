"""Which variables an instruction sees: platform and proxy arguments, global ARGs, a stage's ARGs and ENVs. Pure.

As BuildKit (B39): a global ARG is seen by FROM, and by a stage only after an ARG of that name there; a stage that
begins FROM another one of the file sees what that one declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from layerkit.build.layerfile.expand import expand
from layerkit.build.layerfile.nodes import Arg, ArgItem, Layerfile
from layerkit.errors import RefError
from layerkit.ids import Platform

_PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
PROXY_ARGS = (*_PROXY_NAMES, *(name.lower() for name in _PROXY_NAMES))
_ALIASES = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64", "armhf": "arm", "i386": "386", "i686": "386"}
_SYSTEMS = ("linux", "windows", "darwin", "freebsd")
_DEFAULT_VARIANTS = {("amd64", "v1"), ("arm64", "v8"), ("arm64", "8")}


def parse_platform(text: str) -> Platform:
    """`os/arch[/variant]`, `arch` or `os` alone, in Docker's spellings (`linux/x86_64`, `arm64/v8`).

    Raises:
        RefError: none of them.
    """
    parts = text.lower().split("/")
    if parts[0] not in _SYSTEMS:
        parts = ["linux", *parts]
    if len(parts) == 1:
        parts.append(Platform.host().arch)
    parts[1] = _ALIASES.get(parts[1], parts[1])
    if len(parts) == 3 and (parts[1], parts[2]) in _DEFAULT_VARIANTS:
        parts.pop()
    try:
        return Platform.parse("/".join(parts))
    except RefError as error:
        raise RefError(f"not a platform: {text[:100]!r}", hint=error.hint) from error


def platform_args(target: Platform, build: Platform, stage_name: str) -> dict[str, str]:
    """The arguments that are there without being declared: TARGET*, BUILD* and TARGETSTAGE."""
    values = {"TARGETSTAGE": stage_name or "default"}
    for prefix, platform in (("BUILD", build), ("TARGET", target)):
        values[f"{prefix}PLATFORM"] = str(platform)
        values[f"{prefix}OS"] = platform.os
        values[f"{prefix}ARCH"] = platform.arch
        values[f"{prefix}VARIANT"] = platform.variant
    return values


def proxy_variables(build_args: Mapping[str, str]) -> dict[str, str]:
    """The proxy settings among the build arguments: seen by RUN, kept out of cache keys, configs and history."""
    return {name: value for name, value in build_args.items() if name in PROXY_ARGS}


@dataclass(frozen=True, slots=True)
class ArgScope:
    """What gives ARGs their values. Immutable.

    Attributes:
        layerfile: the file.
        build_args: what the caller passed.
        global_values: platform arguments and the ARGs above the first FROM, with their values.
    """

    layerfile: Layerfile
    build_args: Mapping[str, str]
    global_values: Mapping[str, str]

    @classmethod
    def of(cls, layerfile: Layerfile, build_args: Mapping[str, str], automatic: Mapping[str, str]) -> ArgScope:
        """Evaluate the ARGs above the first FROM; raises LayerfileError.

        Args:
            layerfile: the file.
            build_args: what the caller passed.
            automatic: `platform_args`; build arguments of the same names win.
        """
        values = {name: build_args.get(name, value) for name, value in automatic.items()}
        for arg in layerfile.global_args:
            for item in arg.items:
                if item.name in build_args:
                    values[item.name] = build_args[item.name]
                elif item.default is not None:
                    values[item.name] = expand(layerfile, item.default, values)
        return cls(layerfile, dict(build_args), values)

    def value(self, item: ArgItem, variables: Mapping[str, str]) -> str | None:
        """The value of an ARG inside a stage, None when nothing gives it one.

        A build argument wins, then the default, then the global ARG or platform argument of that name.
        """
        if item.name in self.build_args:
            return self.build_args[item.name]
        if item.default is not None:
            return expand(self.layerfile, item.default, variables)
        return self.global_values.get(item.name)


def unused_build_args(build_args: Mapping[str, str], declared: Iterable[Arg], automatic: Iterable[str]) -> list[str]:
    """The build arguments that nothing declares and that mean nothing by themselves."""
    known = {item.name for arg in declared for item in arg.items} | {*automatic, *PROXY_ARGS, "SOURCE_DATE_EPOCH"}
    return sorted(name for name in build_args if name not in known)
