"""What each instruction does to a stage's configuration, as BuildKit does it: `begin_stage`, `begin_child`, `apply`.

Pure: every function returns a new state. Files are not touched; RUN, COPY and ADD only leave their line of history.
The history of ARG and RUN holds no value of a build argument, unlike BuildKit's: it may be a secret.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from layerkit.build.layerfile import nodes
from layerkit.build.layerfile.expand import error_at, expand
from layerkit.build.layerfile.nodes import ExecForm, Instruction, Layerfile, ScriptForm, ShellForm
from layerkit.build.layerfile.values import check_signal, parse_ports
from layerkit.build.layerfile.words import Word
from layerkit.build.scope import ArgScope
from layerkit.layer.config import Healthcheck, HistoryEntry

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEFAULT_SHELL = ("/bin/sh", "-c")


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The part of a layer's config that instructions set. Empty means not set; None in entrypoint and cmd too."""

    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    user: str = ""
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    shell: tuple[str, ...] = ()
    stop_signal: str = ""
    volumes: tuple[str, ...] = ()
    exposed_ports: tuple[str, ...] = ()
    healthcheck: Healthcheck | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    author: str = ""
    history: tuple[HistoryEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class StageState:
    """A stage between two instructions.

    Attributes:
        image: what will be in the config.
        variables: what substitution and RUN see: ENV and ARG, the later of one name winning.
        cmd_is_own: whether this stage has a CMD of its own, which ENTRYPOINT then leaves alone.
    """

    image: ImageConfig
    variables: Mapping[str, str]
    cmd_is_own: bool = False

    @property
    def workdir(self) -> str:
        """Where RUN starts and relative destinations begin."""
        return self.image.workdir or "/"


def begin_stage(base: ImageConfig) -> StageState:
    """The state below a FROM of something outside the file; PATH is set where the base has none."""
    env = base.env if "PATH" in base.env else {**base.env, "PATH": DEFAULT_PATH}
    return StageState(replace(base, env=env), dict(env))


def begin_child(parent: StageState) -> StageState:
    """The state below a FROM of another stage: its config, and its ARGs unless an ENV has their name (B39)."""
    return StageState(parent.image, {**parent.variables, **parent.image.env})


def apply(state: StageState, instruction: Instruction, scope: ArgScope) -> StageState:
    """The state after an instruction.

    Raises:
        LayerfileError: a word whose variables cannot be put in, or whose value makes no sense.
    """
    effect = _EFFECTS.get(type(instruction))
    return effect(_Step(state, scope.layerfile, scope), instruction) if effect else state


@dataclass(frozen=True, slots=True)
class _Step:
    state: StageState
    layerfile: Layerfile
    scope: ArgScope

    def expand(self, word: Word) -> str:
        return expand(self.layerfile, word, self.state.variables)

    def expand_all(self, words: Iterable[Word]) -> list[str]:
        return [self.expand(word) for word in words]

    def done(self, image: ImageConfig, created_by: str, *, empty: bool = True) -> StageState:
        """The state with another image and one more line of history."""
        line = HistoryEntry(created_by, empty)
        return replace(self.state, image=replace(image, history=(*image.history, line)))


def _env(step: _Step, node: nodes.Env) -> StageState:
    # All pairs see the state before the instruction: ENV A=1 B=$A gives B the old A.
    new: dict[str, str] = {}
    for pair in node.pairs:
        name = step.expand(pair.key)
        if not name or "=" in name:
            raise error_at(step.layerfile, pair.key, f"{name[:60]!r} cannot name a variable")
        new[name] = step.expand(pair.value)
    state = replace(step.state, variables={**step.state.variables, **new})
    image = replace(state.image, env={**state.image.env, **new})
    line = " ".join(f"{name}={value}" for name, value in new.items())
    return replace(step, state=state).done(image, f"ENV {line}")


def _arg(step: _Step, node: nodes.Arg) -> StageState:
    variables = dict(step.state.variables)
    names = []
    for item in node.items:
        value = step.scope.value(item, variables)
        if value is not None:
            variables[item.name] = value
        names.append(item.name)
    state = replace(step.state, variables=variables)
    return replace(step, state=state).done(state.image, f"ARG {' '.join(names)}")


def _label(step: _Step, node: nodes.Label) -> StageState:
    new = {step.expand(pair.key): step.expand(pair.value) for pair in node.pairs}
    image = replace(step.state.image, labels={**step.state.image.labels, **new})
    return step.done(image, "LABEL " + " ".join(f"{name}={value}" for name, value in new.items()))


def _workdir(step: _Step, node: nodes.Workdir) -> StageState:
    path = absolute(step.state.workdir, step.expand(node.path))
    image = replace(step.state.image, workdir=path)
    return step.done(image, f"WORKDIR {path}", empty=path == "/")


def absolute(workdir: str, path: str) -> str:
    """A path in its plain form, from `workdir` when it is relative."""
    return "/" + posixpath.normpath(posixpath.join("/", workdir, path)).lstrip("/")


def _user(step: _Step, node: nodes.User) -> StageState:
    user = step.expand(node.user)
    if not user:
        raise error_at(step.layerfile, node.user, "the user is empty")
    return step.done(replace(step.state.image, user=user), f"USER {user}")


def _shell(step: _Step, node: nodes.Shell) -> StageState:
    return step.done(replace(step.state.image, shell=node.argv), f"SHELL {_array(node.argv)}")


def _cmd(step: _Step, node: nodes.Cmd) -> StageState:
    argv = command_argv(step.state, node.command)
    step = replace(step, state=replace(step.state, cmd_is_own=True))
    return step.done(replace(step.state.image, cmd=argv), f"CMD {_array(argv)}")


def _entrypoint(step: _Step, node: nodes.Entrypoint) -> StageState:
    argv = command_argv(step.state, node.command)
    image = replace(step.state.image, entrypoint=argv or None)
    if not step.state.cmd_is_own:
        # The base's CMD was meant for the base's ENTRYPOINT.
        image = replace(image, cmd=None)
    return step.done(image, f"ENTRYPOINT {_array(argv)}")


def _expose(step: _Step, node: nodes.Expose) -> StageState:
    ports: list[str] = []
    for word in node.ports:
        for text in step.expand(word).split():
            try:
                ports += parse_ports(text)
            except ValueError as error:
                raise error_at(step.layerfile, word, str(error)) from error
    image = step.state.image
    image = replace(image, exposed_ports=tuple(sorted({*image.exposed_ports, *ports})))
    return step.done(image, f"EXPOSE {' '.join(ports)}")


def _volume(step: _Step, node: nodes.Volume) -> StageState:
    paths = step.expand_all(node.paths)
    for word, path in zip(node.paths, paths, strict=True):
        if not path:
            raise error_at(step.layerfile, word, "the path of a volume is empty")
    image = step.state.image
    image = replace(image, volumes=tuple(sorted({*image.volumes, *paths})))
    return step.done(image, f"VOLUME {_array(paths)}")


def _stop_signal(step: _Step, node: nodes.StopSignal) -> StageState:
    try:
        signal = check_signal(step.expand(node.signal))
    except ValueError as error:
        raise error_at(step.layerfile, node.signal, str(error)) from error
    return step.done(replace(step.state.image, stop_signal=signal), f"STOPSIGNAL {signal}")


def _healthcheck(step: _Step, node: nodes.HealthCheck) -> StageState:
    if node.command is None:
        test: tuple[str, ...] = ("NONE",)
    elif isinstance(node.command, ExecForm):
        test = ("CMD", *node.command.argv)
    else:
        test = ("CMD-SHELL", node.command.line)
    health = Healthcheck(
        test, node.interval_ns, node.timeout_ns, node.start_period_ns, node.start_interval_ns, node.retries
    )
    return step.done(replace(step.state.image, healthcheck=health), f"HEALTHCHECK {_array(test)}")


def _maintainer(step: _Step, node: nodes.Maintainer) -> StageState:
    return step.done(replace(step.state.image, author=node.name), f"MAINTAINER {node.name}")


def _run(step: _Step, node: nodes.Run) -> StageState:
    if isinstance(node.command, ScriptForm):
        line = node.command.content
    else:
        line = " ".join(command_argv(step.state, node.command))
    return step.done(step.state.image, f"RUN {line}", empty=False)


def _copy(step: _Step, node: nodes.Copy) -> StageState:
    words = [f"--from={node.from_stage}"] if node.from_stage else []
    words += [f"--{name}={step.expand(word)}" for name, word in (("chown", node.chown), ("chmod", node.chmod)) if word]
    words += step.expand_all(node.sources)
    words += [f"<<{heredoc.name}" for heredoc in node.files]
    words.append(step.expand(node.destination))
    return step.done(step.state.image, f"{node.keyword} {' '.join(words)}", empty=False)


def command_argv(state: StageState, command: ShellForm | ExecForm) -> tuple[str, ...]:
    """The argument vector of a command: as given, or a line behind the stage's shell.

    A script has none before it lies somewhere: see `resolve.resolve_run`.
    """
    if isinstance(command, ExecForm):
        return command.argv
    return (*(state.image.shell or DEFAULT_SHELL), command.line)


def _array(texts: Iterable[str]) -> str:
    return json.dumps(list(texts), ensure_ascii=False)


# The keys are classes and each function takes an instance of its own key, which types cannot say of a mapping.
_EFFECTS: Mapping[type[Instruction], Callable[..., StageState]] = {
    nodes.Env: _env,
    nodes.Arg: _arg,
    nodes.Label: _label,
    nodes.Workdir: _workdir,
    nodes.User: _user,
    nodes.Shell: _shell,
    nodes.Cmd: _cmd,
    nodes.Entrypoint: _entrypoint,
    nodes.Expose: _expose,
    nodes.Volume: _volume,
    nodes.StopSignal: _stop_signal,
    nodes.HealthCheck: _healthcheck,
    nodes.Maintainer: _maintainer,
    nodes.Run: _run,
    nodes.Copy: _copy,
    nodes.Add: _copy,
}
