"""The OCI config: pure, so that what a sandbox may do can be read off it."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

from layerkit.runtime.bundle import AGENT_PATH, CAPABILITIES, Bind, BundleSpec, oci_config
from layerkit.runtime.limits import Limits
from layerkit.runtime.oci_seccomp import oci_seccomp
from layerkit.runtime.userns import IdMap

SPEC = BundleSpec(
    root="/mnt/root", agent="/mnt/agent", hostname="box", cgroup_path="/layerkit-x", cgroup_version=1,
    limits=Limits(cpus=1.5, memory_mb=64), network="none", ids=IdMap(), seccomp=b"\x06\0", open_files=1000,
    limit_swap=False, binds=[Bind("/mnt/m0", "/work", readonly=True)],
)  # fmt: skip


def config(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(oci_config(replace(SPEC, **changes))))
    return found


def namespaces(found: dict[str, Any]) -> set[str]:
    return {entry["type"] for entry in found["linux"]["namespaces"]}


def mounts(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["destination"]: entry for entry in found["mounts"]}


def test_default_is_isolated() -> None:
    found = config()
    assert namespaces(found) == {"pid", "ipc", "uts", "mount", "cgroup", "network", "user"}
    assert found["process"]["noNewPrivileges"] is True
    assert found["process"]["args"] == [AGENT_PATH, "--fd", "3"]
    assert found["linux"]["uidMappings"] == [{"containerID": 0, "hostID": 1 << 30, "size": 1 << 30}]
    assert found["annotations"] == {"run.oci.seccomp_bpf_data": base64.b64encode(b"\x06\0").decode()}
    assert found["linux"]["resources"]["devices"] == [{"allow": False, "access": "rwm"}]


def test_capabilities_are_dockers_or_fewer() -> None:
    docker = {
        "CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP",
        "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
    }  # fmt: skip
    sets = config()["process"]["capabilities"]
    assert set(sets) == {"bounding", "effective", "permitted"}
    for names in sets.values():
        assert {name.removeprefix("CAP_") for name in names} <= docker


def test_limits() -> None:
    resources = config()["linux"]["resources"]
    assert resources["memory"] == {"limit": 64 << 20}
    assert resources["cpu"] == {"quota": 150000, "period": 100000}
    assert resources["pids"] == {"limit": 512}
    assert config(limit_swap=True)["linux"]["resources"]["memory"]["swap"] == 64 << 20
    assert set(config(limits=Limits(pids=None))["linux"]["resources"]) == {"devices"}
    assert "size=67108864" in mounts(config())["/dev/shm"]["options"]


def test_host_network_and_no_user_namespace() -> None:
    found = config(network="host")
    assert "network" not in namespaces(found)
    assert "sysctl" not in found["linux"]
    assert mounts(found)["/sys"]["type"] == "bind"
    assert "ro" in mounts(found)["/sys"]["options"]
    found = config(network="host", ids=None)
    assert "user" not in namespaces(found)
    assert "uidMappings" not in found["linux"]
    assert mounts(found)["/sys"]["type"] == "sysfs"
    assert "ro" in mounts(found)["/sys"]["options"]


def test_ping_groups_fit_the_map() -> None:
    assert config()["linux"]["sysctl"]["net.ipv4.ping_group_range"] == f"0 {(1 << 30) - 1}"


def test_binds_and_control_groups() -> None:
    found = mounts(config())
    assert found["/work"]["options"] == ["bind", "private", "nosuid", "nodev", "ro"]
    assert found[AGENT_PATH]["options"][-1] == "ro"
    assert "/sys/fs/cgroup" not in found
    assert "ro" in mounts(config(cgroup_version=2))["/sys/fs/cgroup"]["options"]


def test_filter_in_the_configs_own_words() -> None:
    rules = oci_seccomp("x86_64", CAPABILITIES)
    found = config(seccomp=rules)
    assert "annotations" not in found
    assert found["linux"]["seccomp"] == rules
    conditions = {rule["names"][0]: rule.get("args") for rule in rules["syscalls"] if len(rule["names"]) == 1}
    assert conditions["clone"] == [{"index": 0, "value": 0x7E020000, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]
    assert conditions["socket"] == [{"index": 0, "value": 40, "op": "SCMP_CMP_NE"}]
    assert "mount" not in {name for rule in rules["syscalls"] for name in rule["names"]}
