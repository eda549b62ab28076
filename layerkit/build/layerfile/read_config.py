"""Instructions that change the configuration only: ENV, ARG, LABEL, WORKDIR, USER, CMD and the like. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from layerkit.build.layerfile import nodes
from layerkit.build.layerfile.nodes import ArgItem, ExecForm, Instruction, Pair, ShellForm
from layerkit.build.layerfile.statement import Statement
from layerkit.build.layerfile.values import parse_duration_ns
from layerkit.build.layerfile.words import BLANKS, Word

_HEALTH_TIMES = {
    "interval": "interval_ns",
    "timeout": "timeout_ns",
    "start-period": "start_period_ns",
    "start-interval": "start_interval_ns",
}
_MAX_RETRIES = 2**31 - 1


def _pairs(statement: Statement) -> tuple[Pair, ...]:
    """`key=value …`, or the old form `key value` when the first word has no `=`."""
    statement.take_flags([])
    words = statement.quoted_words()
    if not words:
        raise statement.error(f"{statement.keyword} needs a name and a value")
    if "=" not in words[0].raw:
        return (_legacy_pair(statement),)
    pairs = []
    for word in words:
        key, equals, value = word.raw.partition("=")
        if not equals:
            raise statement.error_at(
                word,
                f"{statement.keyword} wants name=value, and {word.raw[:60]!r} has no =",
                hint="put a value with blanks into quotes",
            )
        if not key:
            raise statement.error_at(word, f"a name of {statement.keyword} is empty")
        pairs.append(Pair(Word(key, word.line, word.column), Word(value, word.line, word.column + len(key) + 1)))
    return tuple(pairs)


def _legacy_pair(statement: Statement) -> Pair:
    blank = BLANKS.search(statement.body)
    if blank is None:
        raise statement.error(
            f"{statement.keyword} {statement.body[:60]} has no value", hint=f"write {statement.body[:60]}=VALUE"
        )
    statement.note("legacy-pair", f"{statement.keyword} name value is the old form of name=value")
    key = statement.word(0, statement.body[: blank.start()])
    return Pair(key, statement.word(blank.end(), statement.body[blank.end() :]), legacy=True)


def read_env(statement: Statement) -> nodes.Env:
    """ENV name=value …"""
    pairs = _pairs(statement)
    return nodes.Env(span=statement.span, keyword="ENV", text=statement.text, pairs=pairs)


def read_label(statement: Statement) -> nodes.Label:
    """LABEL name=value …"""
    pairs = _pairs(statement)
    return nodes.Label(span=statement.span, keyword="LABEL", text=statement.text, pairs=pairs)


def read_arg(statement: Statement) -> nodes.Arg:
    """ARG name[=default] …"""
    statement.take_flags([])
    items = []
    for word in statement.quoted_words():
        name, equals, default = word.raw.partition("=")
        if not name:
            raise statement.error_at(word, "a name of ARG is empty")
        value = Word(default, word.line, word.column + len(name) + 1) if equals else None
        items.append(ArgItem(name, value, word.line, word.column))
    if not items:
        raise statement.error("ARG needs a name")
    return nodes.Arg(span=statement.span, keyword="ARG", text=statement.text, items=tuple(items))


def read_workdir(statement: Statement) -> nodes.Workdir:
    """WORKDIR path."""
    statement.take_flags([])
    path = statement.whole_body("a path")
    return nodes.Workdir(span=statement.span, keyword="WORKDIR", text=statement.text, path=path)


def read_user(statement: Statement) -> nodes.User:
    """USER name[:group]."""
    statement.take_flags([])
    user = statement.whole_body("a user, such as 1000:1000 or nobody")
    return nodes.User(span=statement.span, keyword="USER", text=statement.text, user=user)


def read_stop_signal(statement: Statement) -> nodes.StopSignal:
    """STOPSIGNAL signal."""
    statement.take_flags([])
    signal = statement.whole_body("a signal, such as SIGTERM")
    return nodes.StopSignal(span=statement.span, keyword="STOPSIGNAL", text=statement.text, signal=signal)


def read_maintainer(statement: Statement) -> nodes.Maintainer:
    """MAINTAINER name; kept as the image's author, as BuildKit does."""
    statement.take_flags([])
    name = statement.whole_body("a name").raw
    statement.note("maintainer-deprecated", f'write LABEL org.opencontainers.image.authors="{name[:60]}" instead')
    return nodes.Maintainer(span=statement.span, keyword="MAINTAINER", text=statement.text, name=name)


def read_shell(statement: Statement) -> nodes.Shell:
    """SHELL ["program", "argument", …]."""
    statement.take_flags([])
    argv = statement.json_body()
    if not argv:
        raise statement.error("SHELL needs a JSON array", hint='for example SHELL ["/bin/bash", "-c"]')
    return nodes.Shell(span=statement.span, keyword="SHELL", text=statement.text, argv=argv)


def read_cmd(statement: Statement) -> nodes.Cmd:
    """CMD in exec or shell form."""
    statement.take_flags([])
    command = _command(statement, 0)
    return nodes.Cmd(span=statement.span, keyword="CMD", text=statement.text, command=command)


def read_entrypoint(statement: Statement) -> nodes.Entrypoint:
    """ENTRYPOINT in exec or shell form."""
    statement.take_flags([])
    command = _command(statement, 0)
    return nodes.Entrypoint(span=statement.span, keyword="ENTRYPOINT", text=statement.text, command=command)


def _command(statement: Statement, offset: int) -> ShellForm | ExecForm:
    argv = statement.json_array(offset)
    if argv is not None:
        return ExecForm(argv)
    line = statement.body[offset:]
    if not line:
        raise statement.error(f"{statement.keyword} needs a command", hint="an empty one is written as []")
    return ShellForm(line)


def read_expose(statement: Statement) -> nodes.Expose:
    """EXPOSE port[/protocol] …"""
    statement.take_flags([])
    ports = tuple(statement.blank_words())
    if not ports:
        raise statement.error("EXPOSE needs a port")
    return nodes.Expose(span=statement.span, keyword="EXPOSE", text=statement.text, ports=ports)


def read_volume(statement: Statement) -> nodes.Volume:
    """VOLUME path …, or a JSON array."""
    statement.take_flags([])
    array = statement.json_body()
    paths = statement.blank_words() if array is None else [statement.word(0, path) for path in array]
    if not paths or not all(path.raw.strip() for path in paths):
        raise statement.error("VOLUME needs a path")
    return nodes.Volume(span=statement.span, keyword="VOLUME", text=statement.text, paths=tuple(paths))


def read_healthcheck(statement: Statement) -> nodes.HealthCheck:
    """HEALTHCHECK [--interval= --timeout= --start-period= --start-interval= --retries=] CMD …, or NONE."""
    match = re.match(r"(\S+)\s*", statement.body)
    if match is None:
        raise statement.error("HEALTHCHECK needs CMD and a command, or NONE")
    kind = match[1].upper()
    if kind == "NONE":
        if match.end() < len(statement.body) or statement.flags:
            raise statement.error("HEALTHCHECK NONE takes nothing else")
        return nodes.HealthCheck(span=statement.span, keyword="HEALTHCHECK", text=statement.text, command=None)
    if kind != "CMD":
        hint = "write HEALTHCHECK CMD or NONE"
        message = f"HEALTHCHECK {match[1][:40]} is unknown"
        raise statement.error(message, offset=0, width=len(match[1]), hint=hint)
    flags = statement.take_flags([*_HEALTH_TIMES, "retries"])
    if match.end() == len(statement.body):
        raise statement.error("HEALTHCHECK CMD needs a command")
    command = _command(statement, match.end())
    if isinstance(command, ExecForm) and not command.argv:
        raise statement.error("HEALTHCHECK CMD needs a command")
    numbers = _health_numbers(statement, flags)
    return nodes.HealthCheck(
        span=statement.span, keyword="HEALTHCHECK", text=statement.text, command=command, **numbers
    )


def _health_numbers(statement: Statement, flags: Mapping[str, Word]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for name, word in flags.items():
        if name == "retries":
            if not re.fullmatch(r"\d{1,10}", word.raw, re.ASCII) or int(word.raw) > _MAX_RETRIES:
                raise statement.error_at(word, f"--retries wants a number, not {word.raw[:40]!r}")
            numbers["retries"] = int(word.raw)
            continue
        try:
            numbers[_HEALTH_TIMES[name]] = parse_duration_ns(word.raw)
        except ValueError as error:
            raise statement.error_at(word, f"--{name}: {error}") from error
    return numbers


CONFIG_READERS: Mapping[str, Callable[[Statement], Instruction]] = {
    "ENV": read_env,
    "LABEL": read_label,
    "ARG": read_arg,
    "WORKDIR": read_workdir,
    "USER": read_user,
    "STOPSIGNAL": read_stop_signal,
    "MAINTAINER": read_maintainer,
    "SHELL": read_shell,
    "CMD": read_cmd,
    "ENTRYPOINT": read_entrypoint,
    "EXPOSE": read_expose,
    "VOLUME": read_volume,
    "HEALTHCHECK": read_healthcheck,
}
