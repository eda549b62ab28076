"""How long a run takes beside the command itself: the command line, and the sandbox next to a bare `crun run`.

The bare run has the same limits, namespaces, id map, seccomp program and kernel mounts as the sandbox, on a plain
folder. So what is compared is what layerkit adds: the overlay, the agent and its command, the record, and taking it
all away. Everything takes turns, so that a busy machine slows all alike. Needs root.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import LAYERKIT, Bench, timed, version_of
from layerkit.runtime.assembly import stage
from layerkit.runtime.cgroups import probe_layout
from layerkit.runtime.container import Container
from layerkit.runtime.limits import Limits
from layerkit.runtime.spec import ContainerSpec
from layerkit.runtime.userns import IdMap

LIMITS = Limits(cpus=2, memory_mb=256)
ROUNDS_A_SAMPLE = 20
CLI_ROUNDS_A_SAMPLE = 5


def run(bench: Bench) -> None:
    """Measure and collect the figures."""
    bench.peers = {"crun": version_of(["crun", "--version"])}
    root = bench.folder / "root"
    make_root(root)
    measure_sandbox(bench, root)
    measure_cli(bench, root)


def make_root(root: Path) -> None:
    """A root file system with one static program."""
    for name in ("bin", "proc", "sys", "dev", "etc", "tmp"):
        (root / name).mkdir(parents=True)
    source = b"int main(void) { return 0; }"
    subprocess.run(["cc", "-static", "-x", "c", "-o", root / "bin/true", "-"], input=source, check=True)


def measure_sandbox(bench: Bench, root: Path) -> None:
    """Whole cycles of both, in this process and in a waiting shell."""
    home = bench.folder / "sandboxes"
    spec = ContainerSpec(lowers=[root], limits=LIMITS)

    def cycle() -> None:
        with Container.start(spec, run=home / "run", home=home) as sandbox:
            if sandbox.exec(["/bin/true"]).exit_code:
                raise RuntimeError("/bin/true failed")

    bare_s, sandbox_s = [], []
    make_bundle(bench.folder / "bundle", root, spec, home)
    with bare_runs(bench.folder / "bundle") as bare:
        for number in range(bench.samples * ROUNDS_A_SAMPLE + 2):
            both = seconds(bare), seconds(cycle)
            if number >= 2:  # the first ones load modules and make the id map's namespace
                bare_s.append(both[0])
                sandbox_s.append(both[1])
    bench.figure("bare_crun_ms", [spent * 1000 for spent in bare_s], "ms")
    bench.figure("sandbox_ms", [spent * 1000 for spent in sandbox_s], "ms")
    ratios = [ours / theirs for ours, theirs in zip(sandbox_s, bare_s, strict=True)]
    bench.figure("sandbox_vs_crun", ratios, at_most=2.0)


def make_bundle(bundle: Path, root: Path, spec: ContainerSpec, home: Path) -> None:
    """The sandbox's own OCI config, without what is layerkit's: its agent, its overlay, its files."""
    with Container.start(spec, run=home / "run", home=home) as sandbox:
        config = json.loads((sandbox.assembly.bundle / "config.json").read_text())
    plain = bundle / "root"
    bundle.mkdir()
    subprocess.run(["cp", "-a", root, plain], check=True)
    owner = IdMap().to_host(0)
    for path in (plain, *plain.rglob("*")):
        os.chown(path, owner, owner, follow_symlinks=False)
    config["root"]["path"] = f"{stage()}/root"
    config["process"]["args"] = ["/bin/true"]
    config["mounts"] = [mount for mount in config["mounts"] if mount["type"] != "bind"]
    config["linux"]["cgroupsPath"] = f"/layerkit-bench-{os.getpid()}"
    (bundle / "config.json").write_text(json.dumps(config))
    # crun gives its standard streams to the sandbox's root: never /dev/null, which is the host's.
    (bundle / "nothing").touch()


@contextmanager
def bare_runs(bundle: Path) -> Iterator[Callable[[], None]]:
    """A call that runs the bundle once, by a shell that is in its mount namespace already."""
    hide = [f"umount {path}; mount -t tmpfs none {path}" for path in map(shlex.quote, hidden_paths())]
    # crun becomes the sandbox's root before it opens its own; that one may not enter the benchmark's folder.
    show = f"mount --bind . {stage()} && cd {stage()}"
    name = f"layerkit-bench-{os.getpid()}"
    script = "\n".join([*hide, show, f"while read -r line; do crun run {name} <nothing || exit 1; echo; done"])
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=bundle
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        into, out = shell.stdin.fileno(), shell.stdout.fileno()

        def once() -> None:
            os.write(into, b"\n")
            if os.read(out, 1) != b"\n":
                raise RuntimeError("the bare crun run failed")

        yield once
        shell.stdin.close()


def hidden_paths() -> list[str]:
    """Mount points that crun must not see, as the sandbox's own launcher hides them."""
    return [str(path) for path in probe_layout().hidden_from_runtime]


def measure_cli(bench: Bench, root: Path) -> None:
    """`layerkit --version`, and a whole `layerkit run` through a hostd that has the layer mounted."""
    names = {"STORE": "store", "HOME": "home", "RUN": "run"}
    env = {f"LAYERKIT_{key}": str(bench.folder / "instance" / folder) for key, folder in names.items()}
    timed([LAYERKIT, "import", root, "-t", "base/bench:1"], env=env)
    commands: dict[str, list[str | Path]] = {
        "cli_version_ms": [LAYERKIT, "--version"],
        "cli_run_ms": [LAYERKIT, "run", "base/bench:1", "--", "/bin/true"],
    }
    samples: dict[str, list[float]] = {name: [] for name in commands}
    try:
        timed(commands["cli_run_ms"], env=env)
        for _ in range(bench.samples * CLI_ROUNDS_A_SAMPLE):
            for name, command in commands.items():
                samples[name].append(timed(command, env=env).wall_s * 1000)
    finally:
        timed([LAYERKIT, "hostd", "--stop"], env=env)
    for name, values in samples.items():
        bench.figure(name, values, "ms", at_most=150)
    bench.figure("cli_start_ms", [max(pair) for pair in zip(*samples.values(), strict=True)], "ms", at_most=150)


def seconds(call: Callable[[], None]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
