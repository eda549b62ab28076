"""`layerkit import`: a directory or a tar archive as a base that stands alone. `build` only."""

from __future__ import annotations

import stat
from pathlib import Path

from layerkit._util.files import translate_os_error
from layerkit.build.knowledge import BuildKnowledge
from layerkit.build.making import LayerMaking, MadeLayer
from layerkit.errors import InputError, MissingError
from layerkit.ids import Platform, Ref
from layerkit.layer.config import LayerConfig
from layerkit.layer.tree import find
from layerkit.store.store import Store

_READS = "import reads directories and tar files, compressed or not"
IMAGE_FILES = (b"oci-layout", b"manifest.json")


def import_layer(
    store: Store, knowledge: BuildKnowledge, source: Path, ref: Ref, platform: Platform, *, use_cache: bool = True
) -> MadeLayer:
    """Make a layer of what `source` holds; the caller gives it its name.

    Args:
        use_cache: whether files known from earlier are not read, and what is stored is believed to be sound.

    Raises:
        InputError: neither a directory nor an archive, or an image archive instead of a root file system.
        ArchiveError: a damaged archive.
    """
    if ref.kind != "base":
        raise InputError(f"an import is a base, not a {ref.kind}", where=str(ref))
    kind = _kind_of(source)
    with LayerMaking(store, knowledge, trusting=use_cache) as making:
        if stat.S_ISDIR(kind):
            tree = making.read_directory(source)
        elif stat.S_ISREG(kind):
            tree = making.read_tar(source)
            if any(find(tree, name) for name in IMAGE_FILES) and find(tree, b"etc") is None:
                raise InputError(
                    "this is an image archive (docker save, OCI), not a root file system",
                    where=str(source),
                    hint="unpack it first, or export a container: docker export CONTAINER > rootfs.tar",
                )
        else:
            raise InputError("neither a directory nor an archive", where=str(source), hint=_READS)
        return making.finish(tree, LayerConfig(kind="base", name=ref.name, version=ref.version, platform=platform))


def _kind_of(source: Path) -> int:
    try:
        return source.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingError("there is nothing to import", where=str(source), hint=_READS) from error
    except OSError as error:
        raise translate_os_error(error, str(source)) from error
