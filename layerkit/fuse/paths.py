"""Where the host side keeps what: one place for every path below LAYERKIT_HOME and LAYERKIT_RUN.

Imported by everything in `fuse`; the standard library only, because the command line's client needs it too. Values,
safe everywhere. `home` survives a boot, `run` need not.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from layerkit import settings
from layerkit.ids import digest_hex

SHORT_NAME = 12
"""Hexadecimal digits of a layer's digest that name its mount point; short, because overlay's options are."""


def short_name(digest: str) -> str:
    """The name under which a layer is mounted and served."""
    return digest_hex(digest)[:SHORT_NAME]


@dataclass(frozen=True, slots=True)
class LayerPaths:
    """The files of one layer below `<home>/host/layers/<sha256>`."""

    folder: Path

    @property
    def record(self) -> Path:
        """Written last: the layer's files are complete and checked. Its mtime is the last mount."""
        return self.folder / "layer.json"

    @property
    def manifest(self) -> Path:
        """The manifest's bytes."""
        return self.folder / "manifest"

    @property
    def config(self) -> Path:
        """The config's bytes."""
        return self.folder / "config"

    @property
    def meta(self) -> Path:
        """The EROFS metadata image."""
        return self.folder / "meta"

    @property
    def chunk_index(self) -> Path:
        """The chunk index."""
        return self.folder / "index"

    @property
    def locator(self) -> Path:
        """The locator as last read from the store."""
        return self.folder / "locator"

    @property
    def data(self) -> Path:
        """The sparse data file of the full mapped length."""
        return self.folder / "data"

    @property
    def presence(self) -> Path:
        """The durable presence map."""
        return self.folder / "presence"


@dataclass(frozen=True, slots=True)
class HostPaths:
    """The folders of one instance."""

    home: Path
    run: Path

    @classmethod
    def from_settings(cls) -> HostPaths:
        """The instance that LAYERKIT_HOME and LAYERKIT_RUN name."""
        return cls(settings.home_dir(), settings.run_dir())

    @property
    def layers(self) -> Path:
        """One folder a layer, named by the 64 digits of its digest."""
        return self.home / "host" / "layers"

    @property
    def writables(self) -> Path:
        """Upper and work folders of writable mounts that were given none."""
        return self.home / "host" / "rw"

    @property
    def lock(self) -> Path:
        """Held by hostd: one writer a home."""
        return self.home / "host" / "lock"

    @property
    def log(self) -> Path:
        """hostd's log."""
        return self.home / "log" / "hostd.log"

    @property
    def api_socket(self) -> Path:
        """hostd's HTTP API."""
        return self.run / "hostd.sock"

    @property
    def ensure_socket(self) -> Path:
        """Where serving processes ask hostd for absent ranges."""
        return self.run / "ensure.sock"

    @property
    def start_lock(self) -> Path:
        """Held by whoever starts hostd."""
        return self.run / "start.lock"

    @property
    def fuse_mount(self) -> Path:
        """The FUSE server's mount point."""
        return self.run / "fuse"

    @property
    def fuse_state(self) -> Path:
        """The FUSE server's pid and start time."""
        return self.run / "fuse.json"

    @property
    def served(self) -> Path:
        """One record a layer that the FUSE server may serve, named by the short name."""
        return self.run / "served"

    @property
    def presence(self) -> Path:
        """Volatile presence maps, named by the 64 digits of the layer's digest."""
        return self.run / "presence"

    @property
    def mounts(self) -> Path:
        """EROFS mount points, named by the short name."""
        return self.run / "l"

    @property
    def mount_states(self) -> Path:
        """One record an EROFS mount."""
        return self.run / "mounts"

    @property
    def leases(self) -> Path:
        """One record a lease."""
        return self.run / "leases"

    @property
    def overlays(self) -> Path:
        """One record an overlay that hostd mounted."""
        return self.run / "overlays"

    def layer(self, digest: str) -> LayerPaths:
        """The paths of one layer; RefError for anything but a digest."""
        return LayerPaths(self.layers / digest_hex(digest))

    def volatile_map(self, digest: str) -> Path:
        """A layer's volatile presence map."""
        return self.presence / digest_hex(digest)

    def mount_point(self, digest: str) -> Path:
        """Where a layer's EROFS is mounted."""
        return self.mounts / short_name(digest)
