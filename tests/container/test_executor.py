"""Build steps in containers: output, exit codes, what is left for the layer, and that nothing stays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from layerkit._util.processes import Owner
from layerkit.runtime.executor import ContainerExecutor
from layerkit.runtime.host_files import host_ca_bundle
from tests.container.conftest import Start

pytestmark = pytest.mark.privileged

CONFIG = {"formatVersion": 1, "kind": "base", "name": "small", "platform": "linux/amd64"}
TOOLKIT = {
    "formatVersion": 1, "kind": "toolkit", "name": "tool", "platform": "linux/amd64", "prefixes": ["/opt/tool"],
    "exports": [{"name": "PATH", "value": "/opt/tool/bin", "append": True}],
}  # fmt: skip


@dataclass(frozen=True)
class Layer:
    ref: str
    digest: str
    path: Path
    config: Mapping[str, object]


@dataclass(frozen=True)
class Stack:
    lease: str
    layers: list[Layer]


class Folders:
    """A host whose layers are folders."""

    def __init__(self, layers: Mapping[str, Layer]) -> None:
        self._layers = layers
        self.leases: set[str] = set()

    def mount_layers(self, layers: tuple[str, ...], *, owner: Owner, prefetch: str) -> Stack:
        assert prefetch == "none", "a step reads a few files of what it stands on"
        assert owner.is_alive
        lease = f"lease-{len(self.leases)}"
        self.leases.add(lease)
        return Stack(lease, [self._layers[digest] for digest in layers])

    def release(self, lease: str) -> None:
        self.leases.remove(lease)


@dataclass(frozen=True)
class Step:
    argv: tuple[str, ...]
    layers: tuple[str, ...] = ("base",)
    toolkits: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: {"PATH": "/bin"})
    workdir: str = "/"
    user: str = ""
    network: str = "none"
    host_trust: bool = False
    script: tuple[str, bytes] | None = None
    hostname: str = "build"


@pytest.fixture
def host(small_root: Path, tmp_path: Path) -> Folders:
    tool = tmp_path / "tool"
    (tool / "opt/tool/bin").mkdir(parents=True)
    base = Layer("base/small", "base", small_root, CONFIG)
    return Folders({"base": base, "tool": Layer("toolkit/tool", "tool", tool, TOOLKIT)})


def listing(upper: Path) -> list[str]:
    found = []
    for folder, folders, files in os.walk(upper):
        found += [os.path.relpath(os.path.join(folder, name), upper) for name in [*folders, *files]]
    return sorted(found)


def script(text: str, **fields: object) -> Step:
    return Step(("sh", "-c", text), **fields)  # type: ignore[arg-type]


def test_step_leaves_its_difference(start: Start, host: Folders) -> None:
    pieces: list[tuple[str, bytes]] = []
    step = script("echo out; echo err >&2; cat > /in; mkdir /d; chown 3:4 /d; rm /etc/group")
    with ContainerExecutor(host).run(step, lambda stream, piece: pieces.append((stream, piece))) as outcome:
        assert outcome.exit_code == 0
        assert listing(outcome.upper) == ["d", "etc", "etc/group", "in"]
        assert (outcome.upper / "in").read_bytes() == b"", "standard input is empty"
        assert (outcome.upper / "d").stat().st_uid == 3
        upper = outcome.upper
    assert sorted(pieces) == [("stderr", b"err\n"), ("stdout", b"out\n")]
    assert not upper.exists()
    assert host.leases == set()


@pytest.mark.parametrize(
    ("argv", "code", "signal"),
    [
        (("sh", "-c", "exit 3"), 3, None),
        (("sh", "-c", "kill -9 $$"), 137, 9),
        (("nothing",), 127, None),
        (("/etc",), 126, None),
    ],
)
def test_r16_failures_have_codes(
    start: Start, host: Folders, argv: tuple[str, ...], code: int, signal: int | None
) -> None:
    said: list[bytes] = []
    with ContainerExecutor(host).run(Step(argv), lambda _, piece: said.append(piece)) as outcome:
        assert (outcome.exit_code, outcome.signal) == (code, signal)
    assert bool(said) == (code in (126, 127))


def test_b21_nothing_done_is_an_empty_difference(start: Start, host: Folders) -> None:
    step = script(
        "cat /etc/hosts /etc/resolv.conf > /dev/null", layers=("base", "tool"), host_trust=True, network="nat"
    )
    with ContainerExecutor(host).run(step, lambda *_: None) as outcome:
        assert listing(outcome.upper) == []


def test_runtime_files_stay_out_even_when_touched(start: Start, host: Folders) -> None:
    text = (
        "echo 1.2.3.4 x >> /etc/hosts; echo nameserver 1.1.1.1 > /etc/resolv.conf;"
        "chmod 600 /etc/profile.d/layerkit.sh; chmod 644 /etc/profile.d/layerkit.sh;"
        "chmod 755 /etc/ssl /etc/ssl/certs; chmod 444 /etc/ssl/certs/*;"
        "rm /etc/profile.d/layerkit.sh; chmod 700 /etc"
    )
    with ContainerExecutor(host).run(
        script(text, layers=("base", "tool"), host_trust=True), lambda *_: None
    ) as outcome:
        assert outcome.exit_code == 0
        assert [name for name in listing(outcome.upper) if name not in ("etc", "etc/profile.d")] == []
        assert outcome.upper.joinpath("etc").stat().st_mode & 0o777 == 0o700


def test_ca_bundle_written_by_the_step_is_its_own(start: Start, host: Folders) -> None:
    own = "etc/ssl/certs/ca-certificates.crt"
    replaced = script(f"echo mine > /x; mv /x /{own}", host_trust=True)
    with ContainerExecutor(host).run(replaced, lambda *_: None) as outcome:
        assert (outcome.upper / own).read_text() == "mine\n"
    appended = script(f"echo mine >> /{own}", host_trust=True)
    with ContainerExecutor(host).run(appended, lambda *_: None) as outcome:
        assert (outcome.upper / own).read_text() == "mine\n"
    assert b"CERTIFICATE" in host_ca_bundle().read_bytes()


def test_toolkit_paths_in_login_shells(start: Start, host: Folders) -> None:
    said: list[bytes] = []
    step = Step(("bash", "-lc", "echo $PATH"), layers=("base", "tool"))
    with ContainerExecutor(host).run(step, lambda _, piece: said.append(piece)):
        pass
    assert said == [b"/opt/tool/bin:/bin\n"]


def test_error_in_the_block_cleans_up(start: Start, host: Folders) -> None:
    with pytest.raises(ZeroDivisionError):
        with ContainerExecutor(host).run(script("true"), lambda *_: None):
            _ = 1 / 0
    assert host.leases == set()
