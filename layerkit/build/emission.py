"""What a finished stage becomes: the tree and config of its base, workspace or toolkit. Pure but for reading layers.

A base is everything; a workspace and a BOUND toolkit are the difference against their parent; any other toolkit is
what lies under its PREFIX (`build.toolkit_tree`).
"""

from __future__ import annotations

from layerkit.build.config_effect import ImageConfig
from layerkit.build.headers import Header
from layerkit.build.stage_files import StageFiles
from layerkit.build.times import with_times
from layerkit.build.toolkit_tree import toolkit_tree
from layerkit.ids import Platform, Ref
from layerkit.layer.config import LayerConfig
from layerkit.layer.merge import diff
from layerkit.layer.tree import Inode


def layer_tree(header: Header, below: StageFiles, files: StageFiles, source_date_epoch: int | None) -> Inode:
    """The tree of the layer that a stage makes.

    Args:
        header: the stage's declarations.
        below: what it stands on.
        files: what it has become.
        source_date_epoch: seconds, or None.

    Raises:
        BuildError: a toolkit that wrote outside of its prefix; the message lists where.
    """
    if header.kind == "base":
        return with_times(files.tree, None, header, source_date_epoch)
    tree = diff(below.tree, files.tree)
    if header.kind == "toolkit" and not header.bound:
        tree = toolkit_tree(header, below.tree, files.tree, tree)
    return with_times(tree, below.tree, header, source_date_epoch)


def layer_config(ref: Ref, header: Header, image: ImageConfig, parent: str, platform: Platform) -> LayerConfig:
    """The config of the layer that a stage makes, under the name it gets."""
    is_toolkit = header.kind == "toolkit"
    return LayerConfig(
        kind=header.kind,
        name=ref.name,
        version=ref.version,
        platform=platform,
        parent=parent,
        bound=header.bound,
        requires=tuple(requirement.text for requirement in header.requires),
        provides=header.provides,
        conflicts=tuple(requirement.text for requirement in header.conflicts),
        prefixes=header.prefixes,
        exports=header.exports,
        # A toolkit gives the stack its EXPORTs; its stage's own environment was for building it.
        env={} if is_toolkit else image.env,
        workdir="" if is_toolkit else image.workdir,
        user="" if is_toolkit else image.user,
        entrypoint=None if is_toolkit else image.entrypoint,
        cmd=None if is_toolkit else image.cmd,
        shell=() if is_toolkit else image.shell,
        stop_signal="" if is_toolkit else image.stop_signal,
        volumes=() if is_toolkit else image.volumes,
        exposed_ports=() if is_toolkit else image.exposed_ports,
        healthcheck=None if is_toolkit else image.healthcheck,
        labels=image.labels,
        history=image.history,
    )


def image_config(config: LayerConfig) -> ImageConfig:
    """What a stage takes over from the layer it is FROM; the history stays with that layer."""
    return ImageConfig(
        env=config.env, workdir=config.workdir, user=config.user, entrypoint=config.entrypoint, cmd=config.cmd,
        shell=config.shell, stop_signal=config.stop_signal, volumes=config.volumes, exposed_ports=config.exposed_ports,
        healthcheck=config.healthcheck, labels=config.labels,
    )  # fmt: skip
