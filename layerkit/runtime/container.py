"""The container backend: one sandbox run by an OCI runtime, with the agent as its first process.

Used by the SDK, the command line and `runtime.executor`. A `Container` may be used by several threads; `stop` may be
called by any of them, any number of times.

Order of a start: record, files, detached mounts, OCI runtime (control group, processes), network, agent. Each step is
written down before it or vanishes with the process that made it, so that a crash leaves nothing that
`cleanup_leftovers` does not remove.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from layerkit import settings
from layerkit._util.files import make_dirs
from layerkit._util.process import get_program
from layerkit._util.processes import Owner
from layerkit.errors import HostError, SandboxError, SandboxLostError, UnsupportedError
from layerkit.runtime import records
from layerkit.runtime.agent_client import AgentConnection
from layerkit.runtime.assembly import Assembly
from layerkit.runtime.bundle import CAPABILITIES
from layerkit.runtime.cgroups import probe_layout
from layerkit.runtime.launcher import Launch, log_tail
from layerkit.runtime.records import CGROUP_PREFIX, Claim, Record, check_id
from layerkit.runtime.spec import DEFAULT_PATH, ContainerSpec

START_DEADLINE_S = 30.0
DIE_DEADLINE_S = 10.0
THAW_AFTER_S = 0.02


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended.

    Args:
        exit_code: its code, or 128 + signal.
        signal: the signal that ended it, None when it ended by itself.
        oom_killed: the kernel killed something of the sandbox for lack of memory while it ran.
    """

    exit_code: int
    signal: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool
    oom_killed: bool
    truncated: bool
    duration_s: float


class Container:
    """A running sandbox; make it with `start`, end it with `stop` or by leaving its `with` block."""

    def __init__(self, spec: ContainerSpec, *, run: Path, home: Path) -> None:
        self.spec = spec
        self.id = check_id(spec.id or os.urandom(8).hex())
        self._folder = home / "sandboxes" / self.id
        self._layout = probe_layout()
        self._group = self._layout.group(CGROUP_PREFIX + self.id)
        self._run = run
        self._claim: Claim | None = None
        self._assembly: Assembly | None = None
        self._agent: AgentConnection | None = None
        self._launch: Launch | None = None
        self._pid = 0
        self._pidfd = -1
        self._lock = threading.Lock()

    @classmethod
    def start(cls, spec: ContainerSpec, *, run: Path | None = None, home: Path | None = None) -> Container:
        """Start a sandbox and wait for its agent.

        Args:
            run, home: the instance's folders; those of the settings when None.

        Raises:
            UnsupportedError: this host cannot do what is asked for, said before anything runs.
            InputError: mounts or limits that cannot be.
            ConflictError: a living sandbox has this id.
            SandboxError, HostError: the OCI runtime or the kernel refused; nothing is left.
        """
        made = cls(spec, run=run or settings.run_dir(), home=home or settings.home_dir())
        made._start()
        return made

    def __enter__(self) -> Container:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def agent(self) -> AgentConnection:
        """The connection to the agent. Raises SandboxLostError after `halt` or `stop`."""
        if self._agent is None:
            raise SandboxLostError("the sandbox has ended", where=self.id)
        return self._agent

    @property
    def upper(self) -> Path:
        """The overlay's upper directory; owners in it are the sandbox's own. It exists until `stop`."""
        if self._assembly is None:
            raise SandboxLostError("the sandbox has ended", where=self.id)
        return self._assembly.upper

    @property
    def assembly(self) -> Assembly:
        """What it was put together from. Raises SandboxLostError after `stop`."""
        if self._assembly is None:
            raise SandboxLostError("the sandbox has ended", where=self.id)
        return self._assembly

    def _start(self) -> None:
        if os.geteuid() != 0:
            raise UnsupportedError("the container backend needs root", hint="run it as root, or use another backend")
        program = get_program(self.spec.runtime)
        try:
            self._make_record()
            self._assembly = Assembly(self.spec, self.id, self._folder, self._group)
            self._assembly.build()
            self._run_runtime(program)
            self._connect_network()
        except BaseException as error:
            self._stop_after(error)
            raise

    def _stop_after(self, error: BaseException) -> None:
        """Clean up after a failed start; what fails meanwhile is told beside the first error."""
        try:
            self.stop()
        except HostError as second:
            error.add_note(f"cleaning up failed too: {second}")

    def _make_record(self) -> None:
        owner = Owner.current()
        upper = self.spec.upper
        work = "" if upper is None else str(upper.parent / f".layerkit-work-{self.id}")
        record = Record(self.id, str(self._folder), self.spec.network, work, owner.pid, owner.start_time)
        self._claim = records.claim(self._run, record)
        make_dirs(self._folder.parent, 0o700)
        self._folder.mkdir(0o700)

    def _run_runtime(self, program: str) -> None:
        """Start the OCI runtime and greet the agent as soon as it answers; the runtime's end is not waited for."""
        assert self._claim is not None
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._launch = Launch(
                    self.assembly.command(program),
                    attach=self.assembly.attach,
                    hide=self._layout.hidden_from_runtime,
                    inherit=[self._claim.fd],
                    log=self.assembly.bundle / "log",
                    third=theirs.fileno(),
                )
            except BaseException:
                ours.close()
                raise
        try:
            self._agent = AgentConnection(ours, handshake_s=START_DEADLINE_S)
        except SandboxLostError as error:
            self._launch.finish()
            said = log_tail(self.assembly.bundle / "log")
            raise SandboxLostError(f"the agent did not start: {said or error}", where=self.id) from error
        self.assembly.close_mounts()

    def _find_process(self) -> int:
        """A pidfd of the first process, -1 when there is none (any more)."""
        if self._pidfd < 0 and self._launch is not None:
            self._launch.finish()
            self._pid = int((self.assembly.bundle / "pid").read_text())
            with suppress(ProcessLookupError):
                self._pidfd = os.pidfd_open(self._pid)
                if not self._is_ours(self._pid):
                    os.close(self._pidfd)
                    self._pidfd = -1
        return self._pidfd

    def _is_ours(self, pid: int) -> bool:
        """Whether a process is in the sandbox's control group: the first one may have died, its number be another's."""
        try:
            text = Path(f"/proc/{pid}/cgroup").read_text()
        except FileNotFoundError:
            return False
        return any(line.endswith(self._group.oci_path) for line in text.splitlines())

    @property
    def pid(self) -> int:
        """The host's number of the sandbox's first process. Raises SandboxError."""
        with self._lock:
            self._find_process()
        return self._pid

    def _connect_network(self) -> None:
        if self.spec.network != "nat":
            return
        from layerkit.runtime.network import connect

        namespace = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            connect(namespace, self.id, self.assembly.resolver)
        finally:
            os.close(namespace)

    def exec(
        self,
        argv: Sequence[str | bytes],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str = "",
        stdin: int | bytes | None = None,
        stdout: Callable[[bytes], None] | int | None = None,
        stderr: Callable[[bytes], None] | int | None = None,
        timeout_s: float | None = None,
        output_cap: int | None = None,
    ) -> CommandResult:
        """Run a command to its end.

        Args:
            env: over the sandbox's own variables.
            cwd, user: the spec's when ''.
            stdin: bytes or an fd; None for an empty one.
            stdout, stderr: called with each piece, or an fd that gets it; None to have it in the result.
            timeout_s: after this everything that the command started is killed.
            output_cap: bytes kept of each stream.

        Raises:
            NotRunnableError: it was not found (127) or cannot be executed (126).
            SandboxLostError: the sandbox died meanwhile; `reason` says when it was for lack of memory.
        """
        before = self._group.oom_kills()
        variables = {"PATH": DEFAULT_PATH, **self.assembly.environment(), **(env or {})}
        try:
            done = self.agent.exec(
                argv, env=variables, cwd=cwd or self.spec.workdir, user=user or self.spec.user, stdin=stdin,
                stdout=stdout, stderr=stderr, timeout_s=timeout_s, output_cap=output_cap,
            )  # fmt: skip
        except SandboxLostError as error:
            if self._group.oom_kills() > before:
                raise SandboxLostError("the sandbox ran out of memory", reason="oom", where=self.id) from error
            raise
        return CommandResult(
            exit_code=done.exit_code, signal=done.signal, stdout=done.stdout, stderr=done.stderr,
            timed_out=done.timed_out, oom_killed=self._group.oom_kills() > before, truncated=done.truncated,
            duration_s=done.duration_s,
        )  # fmt: skip

    def pause(self) -> None:
        """Freeze every process. Raises HostError."""
        self._group.freeze()

    def resume(self) -> None:
        """Let them go on. Raises HostError."""
        self._group.thaw()

    @property
    def is_alive(self) -> bool:
        """Whether the sandbox's first process runs."""
        with self._lock:
            process = self._find_process() if self._claim is not None else -1
            return process >= 0 and not _has_ended(process, 0)

    def isolation(self) -> dict[str, object]:
        """What separates it from the host."""
        spec = self.spec
        separate = ["mount", "pid", "ipc", "uts", "cgroup", *([] if spec.network == "host" else ["network"])]
        return {
            "namespaces": [*separate, *(["user"] if spec.userns == "require" else [])],
            "capabilities": list(CAPABILITIES),
            "no_new_privileges": True,
            "seccomp": True,
            "cgroup": self._layout.mode,
            "network": spec.network,
        }

    def halt(self) -> None:
        """End every process and take away network and control group, but keep the files. Safe to repeat.

        Raises:
            HostError: something of it could not be ended.
        """
        with self._lock:
            self._kill()
            self._await_end()
            if self._claim is not None:
                records.halt(self._claim.record, self._layout)

    def _kill(self) -> None:
        """The fast way out: the kernel ends a PID namespace with its first process."""
        agent, self._agent = self._agent, None
        if agent is not None:
            with suppress(SandboxError, OSError):
                self._find_process()
            agent.close()
        if self._launch is not None:
            self._launch.abandon()
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _await_end(self) -> None:
        self._launch = None
        if self._pidfd < 0:
            return
        if not _has_ended(self._pidfd, THAW_AFTER_S):
            # Perhaps it is paused, also by somebody else: what v1 has frozen dies only when it is let go.
            with suppress(HostError, OSError):
                self._group.thaw()
            _has_ended(self._pidfd, DIE_DEADLINE_S)
        os.close(self._pidfd)
        self._pidfd = -1

    def stop(self) -> None:
        """End it and remove everything of it, whatever state it is in. Safe to repeat.

        Raises:
            HostError: something could not be removed; `cleanup_leftovers` will try again.
        """
        with self._lock:
            self._kill()
            if self._claim is not None:
                # While the kernel takes the processes apart; what they still write meanwhile is removed below.
                shutil.rmtree(self._folder, ignore_errors=True)
            self._await_end()
            claim, self._claim = self._claim, None
            assembly, self._assembly = self._assembly, None
            if assembly is not None:
                assembly.close()
            if claim is not None:
                records.remove(claim, self._layout)


def _has_ended(pidfd: int, wait_s: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))
