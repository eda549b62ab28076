"""Every error that layerkit raises on purpose; standard library only; imported by everything.

LayerkitError
├── InputError                 what the user wrote is wrong
│   ├── RefError               a reference, name, version or platform
│   ├── StackError             layers that do not fit together
│   ├── LayerfileError         a Layerfile, with file and line
│   ├── ArchiveError           a tar or image that cannot be read as one
│   └── SourceChangedError     a folder that somebody changed while it was read
├── StoreError                 the four answers of an object store, never confused
│   ├── MissingError           the object is not there
│   │   └── MissingPlatformError   the layer exists, but not for this platform
│   ├── CorruptError           the bytes are not what their name says
│   ├── UnavailableError       no answer in time; worth another try
│   └── DeniedError            credentials refused
├── ConflictError              other content under a name that never moves
├── LimitError                 a documented limit of the format or of this store
├── NoSpaceError               a disk or quota is full
├── UnsupportedError           this host or backend cannot do it
├── BuildError                 a build step failed
├── HostError                  the daemon, a mount or a helper process failed
└── SandboxError               a sandbox did not do what was asked
    ├── NotRunnableError       the command could not be executed (126, 127)
    ├── SandboxTimeoutError    the time limit passed
    ├── SandboxLostError       the sandbox or its mount died under us
    ├── AgentProtocolError     frames that do not follow the protocol
    └── PathEscapeError        a path that leads out of its root

Callers branch on types, never on texts.
"""

from __future__ import annotations


class LayerkitError(Exception):
    """An error with a stable code, an exit code and a hint.

    Args:
        message: what is wrong, in one sentence without a full stop at its end.
        where: the place: `file:line`, a reference, a layer and path, or an object's key.
        hint: what to do about it; the class's own hint where none is given.
        excerpt: the line of a file that is to blame, with its number and a caret, ready to print; '' for none.
    """

    code = "layerkit-error"
    exit_code = 1
    default_hint = ""

    def __init__(self, message: str, *, where: str = "", hint: str = "", excerpt: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint or self.default_hint
        self.excerpt = excerpt

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class InputError(LayerkitError):
    """What the user wrote is wrong."""

    code = "bad-input"
    exit_code = 2


class RefError(InputError):
    """A reference, name, version or platform that does not follow the grammar."""

    code = "bad-ref"
    default_hint = "references look like base/debian:12; see docs/refs.md"


class LayerfileError(InputError):
    """A Layerfile that cannot be parsed or means something impossible; `where` is file:line."""

    code = "bad-layerfile"


class StackError(InputError):
    """Layers that do not fit together; the message names every reason."""

    code = "bad-stack"


class ArchiveError(InputError):
    """A tar or image that is truncated, hostile or of an unknown form."""

    code = "bad-archive"


class SourceChangedError(InputError):
    """A folder that is being read did not stay as it was: its layer would be a state that never existed."""

    code = "source-changed"
    default_hint = "stop what writes there, or read a copy or snapshot"


class StoreError(LayerkitError):
    """An object store did not deliver; one of the four kinds below."""

    code = "store-error"


class MissingError(StoreError):
    """The object, layer or reference does not exist."""

    code = "missing"
    exit_code = 3


class MissingPlatformError(MissingError):
    """The reference exists for other platforms only."""

    code = "missing-platform"
    default_hint = "`--platform` chooses another one"


class CorruptError(StoreError):
    """Bytes that do not have the digest or the form that their name promises."""

    code = "corrupt"
    exit_code = 4
    default_hint = "`layerkit verify` names what is damaged; building or importing it again with --no-cache mends it"


class UnavailableError(StoreError):
    """No complete answer within the deadline; the same call may succeed later."""

    code = "unavailable"
    exit_code = 5


class DeniedError(StoreError):
    """The store refused the credentials, or the file system the access."""

    code = "denied"
    exit_code = 6


class ConflictError(LayerkitError):
    """Other content already has this immutable name, or somebody moved it first."""

    code = "conflict"
    exit_code = 8


class LimitError(LayerkitError):
    """A limit of the format: name, xattr, link target, layer size, chunk count."""

    code = "limit"
    exit_code = 9


class NoSpaceError(LayerkitError):
    """A disk or quota is full."""

    code = "no-space"
    exit_code = 10
    default_hint = "`layerkit df` shows what is kept; `layerkit prune` frees what can be made again"


class UnsupportedError(LayerkitError):
    """This host, kernel or backend lacks what was asked for."""

    code = "unsupported"
    exit_code = 7
    default_hint = "`layerkit doctor` lists what this host can do and what to install"


class BuildError(LayerkitError):
    """A build step failed; the steps before it are kept in the cache."""

    code = "build-failed"
    exit_code = 11


class HostError(LayerkitError):
    """hostd, a mount or a helper process failed."""

    code = "host-error"
    exit_code = 12


class SandboxError(LayerkitError):
    """A sandbox did not do what was asked."""

    code = "sandbox-error"
    exit_code = 125


class NotRunnableError(SandboxError):
    """The command was found but cannot be executed (126) or was not found (127)."""

    code = "not-runnable"

    def __init__(self, message: str, *, exit_code: int, where: str = "", hint: str = "") -> None:
        super().__init__(message, where=where, hint=hint)
        self.exit_code = exit_code


class SandboxTimeoutError(SandboxError):
    """The time limit passed and everything that was started has been killed."""

    code = "timeout"
    exit_code = 124


class SandboxLostError(SandboxError):
    """The sandbox, its agent or its mount died; `reason` is `oom` when that was for lack of memory, else ''."""

    code = "sandbox-lost"

    def __init__(self, message: str, *, reason: str = "", where: str = "", hint: str = "") -> None:
        super().__init__(message, where=where, hint=hint)
        self.reason = reason


class AgentProtocolError(SandboxError):
    """The peer sent frames that do not follow docs/formats/agent-protocol.md."""

    code = "agent-protocol"


class PathEscapeError(SandboxError):
    """A path that would lead out of its root."""

    code = "path-escape"
