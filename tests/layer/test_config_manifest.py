"""Config and manifest: round trips, canonical bytes, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerkit.errors import CorruptError, InputError, UnsupportedError
from layerkit.ids import Platform, sha256_digest
from layerkit.layer.config import Export, Healthcheck, HistoryEntry, LayerConfig
from layerkit.layer.manifest import META_TYPE, Manifest, build_manifest

DIGEST = "sha256:" + "ab" * 32
AMD64 = Platform("linux", "amd64")


def full_config() -> LayerConfig:
    return LayerConfig(
        kind="workspace", name="team/app", version="1.2.0", platform=AMD64, parent=DIGEST,
        requires=("toolkit/node>=22", "glibc>=2.35"), provides=("app=1.2.0",), conflicts=("toolkit/old",),
        exports=(Export("PATH", "/b/bin", append=True), Export("A", "x=y"), Export("PATH", "/a/bin", append=True)),
        env={"LANG": "C.UTF-8", "EMPTY": ""}, workdir="/srv", user="1000:1000", entrypoint=(), cmd=("sh", "-c", "é\n"),
        shell=("/bin/bash", "-c"), stop_signal="SIGTERM", volumes=("/data", "/a"), exposed_ports=("8080/tcp", "53/udp"),
        healthcheck=Healthcheck(("CMD", "true"), interval_ns=5_000_000_000, retries=3), labels={"b": "1", "a": ""},
        history=(HistoryEntry("RUN true"), HistoryEntry("ENV A=1", True, "c", "2024-01-01T00:00:00Z")),
    )  # fmt: skip


def test_config_comes_back() -> None:
    config = full_config()
    assert LayerConfig.from_bytes(config.to_bytes()) == config
    small = LayerConfig("base", "debian", platform=AMD64)
    assert LayerConfig.from_bytes(small.to_bytes()) == small
    assert small.to_bytes() == b'{"formatVersion":1,"kind":"base","name":"debian","platform":"linux/amd64"}'


def test_l24_config_bytes_do_not_depend_on_the_order_of_maps_and_sets() -> None:
    config = full_config()
    other = replace(
        config, env=dict(reversed(config.env.items())), labels=dict(reversed(config.labels.items())),
        volumes=("/a", "/data/", "//data"), exposed_ports=("53/udp", "8080"), workdir="/srv/.",
    )  # fmt: skip
    assert other.to_bytes() == config.to_bytes()
    assert replace(config, exports=config.exports[::-1]).to_bytes() != config.to_bytes()


def test_unset_and_empty_commands_differ() -> None:
    config = LayerConfig("base", "x", platform=AMD64, entrypoint=())
    assert config.cmd is None
    assert LayerConfig.from_bytes(config.to_bytes()).entrypoint == ()
    assert LayerConfig.from_bytes(config.to_bytes()).cmd is None


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "layer"},
        {"name": "Bad"},
        {"version": "-1"},
        {"parent": DIGEST},
        {"parent": "sha256:00", "kind": "workspace"},
        {"kind": "workspace"},
        {"bound": True, "parent": DIGEST},
        {"kind": "toolkit"},
        {"prefixes": ("/opt/x",)},
        {"kind": "toolkit", "prefixes": ("opt/x",)},
        {"kind": "toolkit", "prefixes": ("/opt/../etc",)},
        {"kind": "toolkit", "prefixes": ("/opt/x/",)},
        {"kind": "toolkit", "bound": True},
        {"env": {"A=B": "x"}},
        {"env": {"": "x"}},
        {"exposed_ports": ("http",)},
        {"requires": ("a b",)},
        {"requires": ("",)},
    ],
)
def test_impossible_configs_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        LayerConfig(**({"kind": "base", "name": "x", "platform": AMD64} | fields))


def test_text_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(InputError, match="UTF-8"):
        LayerConfig("base", "x", platform=AMD64, env={"A": "\udcff"}).to_bytes()


def test_toolkits() -> None:
    LayerConfig("toolkit", "node", "22.4.1", AMD64, prefixes=("/opt/node",))
    LayerConfig("toolkit", "git", "2", AMD64, parent=DIGEST, bound=True)


def changed(data: bytes, **fields: Any) -> bytes:
    value = json.loads(data) | fields
    return json.dumps({name: part for name, part in value.items() if part is not None}).encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": None},
        {"kind": 1},
        {"kind": "layer"},
        {"formatVersion": None},
        {"formatVersion": "1"},
        {"formatVersion": True},
        {"platform": "linux"},
        {"bound": 1},
        {"env": []},
        {"env": {"A": 1}},
        {"env": {"A": "\0"}},
        {"cmd": "sh"},
        {"cmd": [1]},
        {"exports": [{"name": "A"}]},
        {"exports": [{"name": "A", "value": "b", "more": 1}]},
        {"exports": ["A=b"]},
        {"history": {}},
        {"healthcheck": {"test": ["NONE"], "retries": -1}},
        {"unknown": 1},
    ],
)
def test_l32_hostile_configs_are_corrupt(fields: dict[str, Any]) -> None:
    with pytest.raises(CorruptError):
        LayerConfig.from_bytes(changed(full_config().to_bytes(), **fields))


def test_a_newer_config_is_unsupported_and_says_so() -> None:
    with pytest.raises(UnsupportedError, match="format version 2") as caught:
        LayerConfig.from_bytes(changed(full_config().to_bytes(), formatVersion=2, something={"new": 1}))
    assert "update layerkit" in caught.value.hint


def test_manifest_comes_back() -> None:
    parts = (b"config", b"meta", b"index", b"facts")
    data = build_manifest(*parts, annotations={"org.opencontainers.image.title": "x"})
    manifest = Manifest.parse(data)
    assert manifest.to_bytes() == data
    for descriptor, part in zip(
        (manifest.config, manifest.meta, manifest.chunk_index, manifest.facts), parts, strict=True
    ):
        assert (descriptor.digest, descriptor.size) == (sha256_digest(part), len(part))
    value = json.loads(data)
    assert value["schemaVersion"] == 2
    assert value["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert value["artifactType"] == "application/vnd.layerkit.layer.v1+json"
    assert value["layers"][0]["mediaType"] == META_TYPE == "application/vnd.erofs"
    assert build_manifest(*parts) != data


def broken(change: Any) -> bytes:
    value = json.loads(build_manifest(b"config", b"meta", b"index", b"facts"))
    change(value)
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.update(schemaVersion=1),
        lambda value: value.update(mediaType="application/vnd.docker.distribution.manifest.v2+json"),
        lambda value: value.update(artifactType="application/vnd.layerkit.layer.v9+json"),
        lambda value: value.pop("artifactType"),
        lambda value: value.pop("config"),
        lambda value: value["layers"].pop(),
        lambda value: value["layers"].append(value["layers"][0]),
        lambda value: value["layers"].reverse(),
        lambda value: value["layers"][0].pop("annotations"),
        lambda value: value["layers"][0].update(digest="sha256:../../etc/passwd"),
        lambda value: value["layers"][0].update(digest="sha512:" + "0" * 128),
        lambda value: value["layers"][0].update(size=-1),
        lambda value: value["layers"][0].update(size=1 << 60),
        lambda value: value["layers"][0].update(size=1.5),
        lambda value: value["layers"][0].update(urls=["http://elsewhere"]),
        lambda value: value["layers"][1].update(mediaType="text/plain"),
        lambda value: value.update(subject={}),
        lambda value: value.update(annotations={"a": 1}),
    ],
)
def test_l32_hostile_manifests_are_corrupt(change: Any) -> None:
    with pytest.raises(CorruptError):
        Manifest.parse(broken(change))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from(
        ["schemaVersion", "mediaType", "config", "layers", "annotations", "kind", "env", "exports", "history"]
    ),
)
@settings(max_examples=200)  # fmt: skip
def test_l32_fuzzed_documents_are_corrupt_or_whole(value: Any, field: str) -> None:
    for data, parse in (
        (build_manifest(b"config", b"meta", b"index", b"facts"), Manifest.parse),
        (full_config().to_bytes(), LayerConfig.from_bytes),
    ):
        mutated = json.dumps(json.loads(data) | {field: value}).encode()
        try:
            parse(mutated)
        except (CorruptError, UnsupportedError):
            continue
