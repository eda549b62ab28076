"""doctor: finds out by trying, for root and for plain users, and leaves nothing."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from layerkit._util.overlay import mount_points
from layerkit._util.process import run_program
from layerkit.fuse import doctor, probes
from layerkit.fuse.doctor import Probe, run_doctor

NEEDED_HERE = ("erofs", "erofs-from-files", "short-reads", "overlay", "overlay-lowers", "fuse", "idmapped-mounts")


def by_name(found: list[Probe]) -> dict[str, Probe]:
    return {probe.name: probe for probe in found}


@pytest.mark.privileged
def test_root_finds_what_it_can_do(instance: Path) -> None:
    before = mount_points()
    found = by_name(run_doctor())
    if probes.kernel_version() >= (6, 14):
        assert all(found[name].ok for name in NEEDED_HERE), [found[name] for name in NEEDED_HERE]
    assert mount_points() == before
    assert all(probe.ok or probe.fix for probe in found.values())
    assert json.loads(json.dumps([probe.to_json() for probe in found.values()]))
    assert doctor.frontend_choice()["fanotify"]


def test_a_plain_user_gets_findings_not_a_traceback(instance: Path) -> None:
    script = (
        "import os, json, tempfile, layerkit.fuse.doctor as d\n"
        "if os.geteuid() == 0:\n"
        "    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "found = d.run_doctor()\n"
        "print(json.dumps([p.to_json() for p in found])); print(json.dumps(d.frontend_choice()))\n"
    )
    done = run_program([sys.executable, "-c", script], env={**os.environ, "TMPDIR": "/tmp"})
    lines = done.stdout.decode().splitlines()
    found = {probe["name"]: probe for probe in json.loads(lines[0])}
    assert not found["cap-sys-admin"]["ok"]
    assert found["cap-sys-admin"]["fix"]
    assert not found["erofs-from-files"]["ok"]
    assert found["kernel"]["ok"]
    assert "CAP_SYS_ADMIN" in json.loads(lines[1])["fuse"]


def test_a_probe_that_breaks_is_a_finding() -> None:
    def broken() -> str:
        raise OSError(5, "Input/output error")

    probe = doctor._run(doctor._Check("x", broken, "mend it", "y"))
    assert not probe.ok
    assert "Input/output error" in probe.detail
    assert probe.fix == "mend it"


@pytest.mark.privileged
def test_short_reads_are_found_on_a_real_mount() -> None:
    assert probes.short_read_problem() == ""
    assert probes.erofs_problem(loop=False) == ""
    assert probes.erofs_problem(loop=True) == ""
