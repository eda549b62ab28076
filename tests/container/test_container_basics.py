"""What a sandbox of the container backend is and sees."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from layerkit.errors import ConflictError, InputError, NotRunnableError, SandboxLostError, UnsupportedError
from layerkit.runtime.container import Container
from layerkit.runtime.container_capabilities import container_capabilities
from layerkit.runtime.limits import MAX_OPEN_FILES, Limits
from layerkit.runtime.spec import ContainerSpec, Mount
from layerkit.runtime.userns import HOST_START
from tests.container.conftest import Start, compile_static

pytestmark = pytest.mark.privileged


def sh(sandbox: Container, script: str, **options: object) -> str:
    done = sandbox.exec(["sh", "-c", script], **options)  # type: ignore[arg-type]
    assert done.exit_code == 0, done
    return done.stdout.decode()


def test_owners_on_disk_are_the_sandboxs_own(start: Start) -> None:
    sandbox = start()
    sh(
        sandbox,
        "touch /a; chown 5:7 /a; mkdir /d; touch /d/b; chown 1000 /d/b; rm /etc/group; ln /a /a2; chmod 4755 /a",
    )
    owners = {name: (os.lstat(sandbox.upper / name).st_uid, os.lstat(sandbox.upper / name).st_gid)
              for name in (".", "a", "d", "d/b", "etc")}  # fmt: skip
    assert owners == {".": (0, 0), "a": (5, 7), "d": (0, 0), "d/b": (1000, 0), "etc": (0, 0)}
    assert stat.S_ISCHR(os.lstat(sandbox.upper / "etc/group").st_mode)
    assert os.stat(sandbox.upper / "a").st_nlink == 2
    assert os.stat(sandbox.upper / "a").st_mode & 0o7777 == 0o4755
    assert sh(sandbox, "stat -c '%u %g' /a /bin/sh").split() == ["5", "7", "0", "0"]
    assert os.stat(f"/proc/{sandbox.pid}").st_uid in (0, HOST_START)
    assert Path(f"/proc/{sandbox.pid}/uid_map").read_text().split() == ["0", str(HOST_START), str(HOST_START)]


def test_without_user_namespace_only_when_asked(start: Start) -> None:
    sandbox = start(userns="off")
    sh(sandbox, "touch /a; chown 5:7 /a; mknod /null c 1 3; mknod /mem c 1 1; mknod /loop b 7 0")
    assert (os.stat(sandbox.upper / "a").st_uid, os.stat(sandbox.upper / "a").st_gid) == (5, 7)
    assert os.stat(sandbox.upper / "null").st_rdev == os.makedev(1, 3)
    # Whatever device files layers bring or commands make, the devices control group decides.
    assert b"not permitted" in sandbox.exec(["head", "-c1", "/mem"]).stderr
    assert b"not permitted" in sandbox.exec(["head", "-c1", "/loop"]).stderr
    assert "user" not in sandbox.isolation()["namespaces"]  # type: ignore[operator]


def test_capability_of_a_file_survives_for_a_layer(start: Start) -> None:
    sandbox = start()
    sh(sandbox, "cp /bin/true /t; setcap cap_net_bind_service+ep /t; getcap /t")
    value = os.getxattr(sandbox.upper / "t", "security.capability")
    revision, root = value[3], value[20:24]
    assert revision == 2 or root == b"\0\0\0\0", value.hex()


def test_runtime_files_never_enter_the_upper(start: Start, tmp_path: Path) -> None:
    lower = tmp_path / "bare"
    (lower / "bin").mkdir(parents=True)
    compile_static("int main(void){return 0;}", lower / "bin/true")
    host = tmp_path / "host"
    host.mkdir()
    sandbox = start(lowers=[lower], mounts=[Mount(host, "/srv/deep/here")], host_trust=True, network="host")
    assert sandbox.exec(["/bin/true"]).exit_code == 0
    assert os.listdir(sandbox.upper) == []


def test_view_from_inside(start: Start) -> None:
    sandbox = start(hostname="box", env={"A": "b", "PATH": "/bin"}, workdir="/tmp", user="user")
    assert (
        sh(sandbox, "hostname; cat /etc/hostname; pwd; id -u; id -G; echo $A") == "box\nbox\n/tmp\n1000\n1000 2000\nb\n"
    )
    assert sh(sandbox, "cat /etc/hosts", user="root").endswith("127.0.1.1\tbox\n")
    assert sh(sandbox, "echo x >> /etc/hosts && tail -n1 /etc/hosts", user="root") == "x\n"
    status = sh(sandbox, "cat /proc/self/status", user="0")
    values = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    assert values["NoNewPrivs"] == "1"
    assert values["Seccomp"] == "2"
    assert int(values["CapEff"], 16) & (1 << 19 | 1 << 21 | 1 << 13) == 0  # ptrace, admin, raw sockets
    assert int(values["CapEff"], 16) == int(values["CapBnd"], 16)
    assert sh(sandbox, "ulimit -Hn; ulimit -c", user="0").split() == [str(MAX_OPEN_FILES), "0"]
    assert sh(sandbox, "stat -f -c %T /dev/shm /dev /proc /sys; ls /proc/1/fd 2>&1 | head -1; cat /proc/kcore | wc -c")
    assert sandbox.exec(["sh", "-c", "touch /sys/x || touch /proc/sys/x || echo > /proc/sysrq-trigger"]).exit_code != 0
    assert sh(sandbox, "echo x > /dev/null; head -c 4 /dev/urandom | wc -c; ls -l /dev/ptmx >/dev/null") == "4\n"


def test_network_none_has_loopback_only(start: Start) -> None:
    sandbox = start()
    assert [line.split(":")[0].strip() for line in sh(sandbox, "cat /proc/net/dev").splitlines()[2:]] == ["lo"]
    assert sh(sandbox, "cat /etc/resolv.conf") == ""


def test_network_host(start: Start) -> None:
    sandbox = start(network="host")
    assert sh(sandbox, "cat /proc/net/dev").count(":") == Path("/proc/net/dev").read_text().count(":")
    assert sh(sandbox, "cat /etc/resolv.conf") == Path("/etc/resolv.conf").read_text()
    assert sandbox.exec(["touch", "/sys/x"]).exit_code != 0


@pytest.mark.parametrize("userns", ["require", "off"])
def test_mounts_keep_owners(start: Start, tmp_path: Path, userns: str) -> None:
    host = tmp_path / "data"
    host.mkdir()
    (host / "mine").write_text("m")
    os.chown(host / "mine", 1000, 1000)
    file = tmp_path / "one"
    file.write_text("1")
    mounts = [Mount(host, "/mine"), Mount(host, "/ro", readonly=True), Mount(file, "/etc/one", readonly=True)]
    sandbox = start(mounts=mounts, userns=userns)
    assert sh(sandbox, "stat -c %u /mine/mine; cat /etc/one") == "1000\n1"
    sh(sandbox, "echo new > /mine/new; chown 7 /mine/new")
    assert (host / "new").read_text() == "new\n"
    assert (host / "new").stat().st_uid == 7
    assert sandbox.exec(["touch", "/ro/x"]).exit_code != 0
    assert sandbox.exec(["sh", "-c", "echo > /etc/one"]).exit_code != 0
    assert os.listdir(sandbox.upper) == []


@pytest.mark.parametrize(("runtime", "userns"), [("crun", "require"), ("crun", "off"), ("runc", "require")])
def test_mounts_of_restricted_file_systems(start: Start, tmp_path: Path, runtime: str, userns: str) -> None:
    if shutil.which(runtime) is None:
        pytest.skip(f"{runtime} is not installed")
    host = tmp_path / "t"
    host.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,noatime,mode=755", "x", host], check=True)
    try:
        shutil.copy("/bin/true", host / "t")
        sandbox = start(mounts=[Mount(host, "/t"), Mount(host, "/r", readonly=True)], runtime=runtime, userns=userns)
        sh(sandbox, "touch /t/x; ls /r/x")
        with pytest.raises(NotRunnableError):
            sandbox.exec(["/t/t"])
        subprocess.run(["mount", "-o", "remount,ro", host], check=True)
        other = start(mounts=[Mount(host, "/t")], runtime=runtime, userns=userns)
        assert other.exec(["touch", "/t/y"]).exit_code != 0
        other.stop()
        sandbox.stop()
    finally:
        subprocess.run(["umount", host], check=True)


def test_mount_over_the_wrong_kind_is_refused(start: Start, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot mount over /etc/passwd"):
        start(mounts=[Mount(tmp_path, "/etc/passwd")])
    with pytest.raises(InputError, match="cannot be mounted"):
        start(mounts=[Mount(tmp_path / "absent", "/x")])


def test_many_lowers_and_erofs(start: Start, small_root: Path, tmp_path: Path) -> None:
    layer, image, point = tmp_path / "layer", tmp_path / "image", tmp_path / "mounted"
    (layer / "opt").mkdir(parents=True)
    (layer / "opt/file").write_text("erofs\n")
    os.chown(layer / "opt/file", 33, 44)
    subprocess.run(["mkfs.erofs", "--quiet", image, layer], check=True, capture_output=True)
    point.mkdir()
    subprocess.run(["mount", "-t", "erofs", "-o", "loop", image, point], check=True)
    try:
        tops = []
        for number in range(40):
            top = tmp_path / f"a-rather-long-name-for-a-layer-{number:030}"
            (top / "marks").mkdir(parents=True)
            (top / "marks" / str(number)).touch()
            tops.append(top)
        sandbox = start(lowers=[*tops, point, small_root])
        assert sh(sandbox, "ls /marks | wc -l; cat /opt/file; stat -c '%u:%g' /opt/file") == "40\nerofs\n33:44\n"
        sandbox.stop()
    finally:
        subprocess.run(["umount", point], check=True)


def test_given_upper_is_kept(start: Start, small_root: Path, tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    upper.mkdir(mode=0o755)
    upper.chmod(0o755)
    first = start(upper=upper)
    sh(first, "echo one > /kept; rm /etc/profile")
    first.stop()
    assert (upper / "kept").read_text() == "one\n"
    second = start(upper=upper)
    assert sh(second, "cat /kept; ls /etc/profile 2>&1 || echo gone").endswith("gone\n")
    second.stop()
    assert sorted(path.name for path in tmp_path.iterdir() if "work" in path.name) == []


def test_upper_on_an_overlay_names_the_fix(start: Start, tmp_path: Path, small_root: Path) -> None:  # R03
    for name in ("l", "u", "w", "m"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tmp_path}/l,upperdir={tmp_path}/u,workdir={tmp_path}/w"
    subprocess.run(["mount", "-t", "overlay", "x", "-o", options, tmp_path / "m"], check=True)
    try:
        (tmp_path / "m/upper").mkdir()
        with pytest.raises(Exception, match=r"overlay refused") as caught:
            start(upper=tmp_path / "m/upper", userns="off")
        assert "overlay itself" in caught.value.hint  # type: ignore[attr-defined]
    finally:
        subprocess.run(["umount", tmp_path / "m"], check=True)


def test_path_additions_reach_login_shells(start: Start) -> None:
    sandbox = start(path_additions=("/opt/b/bin", "/opt/a/bin"), env={"PATH": "/opt/b/bin:/opt/a/bin:/bin"})
    assert sh(sandbox, "echo $PATH") == "/opt/b/bin:/opt/a/bin:/bin\n"
    assert sandbox.exec(["bash", "-lc", "echo $PATH"]).stdout == b"/opt/b/bin:/opt/a/bin:/bin\n"
    assert os.listdir(sandbox.upper) == []


def test_host_trust(start: Start) -> None:
    sandbox = start(host_trust=True)
    sizes = sh(sandbox, 'wc -c < "$SSL_CERT_FILE"; wc -c < /etc/ssl/certs/ca-certificates.crt').split()
    assert len(set(sizes)) == 1
    assert int(sizes[0]) > 1000
    # What `update-ca-certificates` does must work: no mount point is in its way.
    sh(sandbox, "cd /etc/ssl/certs; echo new > x; mv -f x ca-certificates.crt")


def test_same_id_twice_is_a_conflict(start: Start) -> None:
    first = start(id="same-id")
    with pytest.raises(ConflictError):
        start(id="same-id")
    assert first.is_alive


def test_everything_after_stop_is_typed(start: Start) -> None:  # R34
    sandbox = start()
    sandbox.stop()
    sandbox.stop()
    sandbox.halt()
    assert not sandbox.is_alive
    with pytest.raises(SandboxLostError):
        sandbox.exec(["true"])
    with pytest.raises(SandboxLostError):
        _ = sandbox.upper


def test_r16_exit_codes(start: Start) -> None:
    sandbox = start()
    sh(sandbox, "echo hi > /tmp/plain; printf '#!/no/such\n' > /tmp/script 2>/dev/null || true; chmod 644 /tmp/plain")
    for argv, code in ((["false"], 1), (["sh", "-c", "exit 125"], 125), (["sh", "-c", "kill -9 $$"], 137)):
        assert sandbox.exec(argv).exit_code == code
    for argv, code in ((["/no/such"], 127), (["no-such"], 127), (["/tmp/plain"], 126), (["/tmp"], 126)):
        with pytest.raises(NotRunnableError) as caught:
            sandbox.exec(argv)
        assert caught.value.exit_code == code


def test_capabilities_say_why() -> None:
    found = container_capabilities()
    assert set(found) == {"run", "userns", "limits", "disk_mb", "nat", "runc"}
    assert found["run"] == found["userns"] == found["limits"] == ""


def test_unknown_runtime_and_empty_stack() -> None:
    with pytest.raises(InputError):
        ContainerSpec(lowers=[])
    with pytest.raises(InputError):
        Limits(memory_mb=1)
    with pytest.raises(InputError):
        Limits(cpus=float("nan"))


def test_missing_program_is_named(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerkit.runtime.container.get_program", _not_installed)
    with pytest.raises(UnsupportedError, match="crun"):
        start()


def _not_installed(name: str) -> str:
    raise UnsupportedError(f"{name} is not installed")
