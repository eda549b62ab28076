"""Frontends: how the kernel comes to a layer's data. One contract suite runs over all (tests/fuse/test_frontends.py).

Imported by hostd. `prepare` and `finish` block and are called for one layer by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from layerkit.errors import HostError, UnsupportedError
from layerkit.fuse.erofs_mount import MountSource
from layerkit.fuse.fuse_process import FuseProcess
from layerkit.fuse.host_layer import HostLayer
from layerkit.fuse.intake import LayerFacts
from layerkit.fuse.paths import HostPaths
from layerkit.fuse.served import ServedRecord, remove_served, write_served

View = Literal["device", "flat", "old"]


class Frontend(Protocol):
    """One way of bringing a layer's data to the kernel.

    Attributes:
        name: as it stands in `status` and in requests.
        is_lazy: whether a layer can be mounted before its chunks are there.
        problem: why this host cannot use it; '' when it can.
    """

    name: str
    is_lazy: bool
    problem: str

    def prepare(self, layer: HostLayer, facts: LayerFacts) -> MountSource:
        """Make everything ready for the mount; raises HostError, UnsupportedError."""
        ...

    def finish(self, layer: HostLayer) -> None:
        """The layer has been unmounted."""
        ...

    def is_alive(self) -> bool:
        """Whether what serves this frontend's mounts still runs; if not, they are lost. Quick."""
        ...


class LocalFrontend:
    """The plain data file, for layers whose chunks are all present: no daemon on the path.

    Args:
        loop: through loop devices, for kernels before 6.12.
    """

    name = "local"
    is_lazy = False

    def __init__(self, *, loop: bool = False, problem: str = "") -> None:
        self.problem = problem
        self._loop = loop

    def prepare(self, layer: HostLayer, facts: LayerFacts) -> MountSource:
        """Refuses a layer with an absent chunk: its holes would be read as zeros."""
        if not layer.is_complete:
            raise HostError("not every chunk is present", where=layer.digest)
        if not layer.data.is_in_place:
            raise HostError("the data file was replaced", where=layer.digest)
        return MountSource(layer.paths.meta, layer.paths.data if layer.data.size else None, self._loop)

    def finish(self, layer: HostLayer) -> None:
        """Nothing was set up."""

    def is_alive(self) -> bool:
        """Nothing serves it but the kernel."""
        return True


class FuseFrontend:
    """The FUSE server's files.

    Args:
        view: `device`: metadata from its own file, data as external device (kernels since 6.12). `flat` and `old`
            (before 6.4): one image through a loop device.
    """

    name = "fuse"
    is_lazy = True

    def __init__(self, paths: HostPaths, process: FuseProcess, *, view: View = "device", problem: str = "") -> None:
        self.problem = problem
        self._paths = paths
        self._process = process
        self._view = view

    def prepare(self, layer: HostLayer, facts: LayerFacts) -> MountSource:
        """Start the server where needed, and let it serve the layer."""
        self._process.start()
        record = ServedRecord(
            layer.digest, str(layer.paths.folder), str(self._paths.volatile_map(layer.digest)),
            facts.meta_size, facts.mapped_size, layer.data.size,
        )  # fmt: skip
        write_served(self._paths.served, layer.name, record)
        folder = self._paths.fuse_mount / layer.name
        if self._view == "device":
            return MountSource(layer.paths.meta, folder / "data" if layer.data.size else None)
        return MountSource(folder / ("image" if self._view == "flat" else "image-old"), None, loop=True)

    def finish(self, layer: HostLayer) -> None:
        """New openers are served no longer."""
        remove_served(self._paths.served, layer.name)

    def is_alive(self) -> bool:
        """Whether the FUSE server runs and is mounted."""
        return self._process.is_running


def choose_frontend(wanted: str, frontends: Sequence[Frontend], layer: HostLayer) -> Frontend:
    """The frontend for a mount.

    Args:
        wanted: a name, or `auto`: `local` when every chunk is present or nothing lazy works here, else the first lazy
            one that does.

    Raises:
        UnsupportedError: no such frontend, or this host cannot use it.
    """
    if wanted != "auto":
        for frontend in frontends:
            if frontend.name == wanted:
                if frontend.problem:
                    raise UnsupportedError(f"frontend {wanted}: {frontend.problem}")
                return frontend
        raise UnsupportedError(
            f"no frontend {wanted!r}", hint=f"there are {', '.join(f.name for f in frontends)}, auto"
        )
    usable = [frontend for frontend in frontends if not frontend.problem]
    usable.sort(key=lambda frontend: frontend.is_lazy == layer.is_complete)
    if not usable:
        raise UnsupportedError("; ".join(f"frontend {f.name}: {f.problem}" for f in frontends))
    return usable[0]
