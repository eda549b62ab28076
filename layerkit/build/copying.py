"""What COPY and ADD do to a tree, by BuildKit's rules. Pure; `build` only.

Rules (moby/buildkit frontend/dockerfile and tonistiigi/fsutil copy): the destination is written through symlinks; a
directory's contents are copied, not the directory; several sources or a slash at the end make the destination a folder;
an existing destination directory keeps its attributes, existing directories below it take those of the source; missing
parents get mode 0755 and the owner of `--chown`; links inside a source directory are copied as links.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace

from layerkit.build.edit import TreeEditor
from layerkit.build.filemode import FileMode
from layerkit.build.paths import Parts, join, resolve
from layerkit.errors import InputError
from layerkit.layer.tree import Inode


@dataclass(frozen=True, slots=True)
class CopySource:
    """One thing to copy: the name it gets inside a destination directory, and its tree."""

    name: bytes
    inode: Inode


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """How owners, modes and new parents come out.

    Attributes:
        owner: (uid, gid) for everything copied and created, or None to keep the sources'.
        mode: what to make of everything copied's permission bits, or None to keep the sources'.
        mtime_ns: the time of created parent directories.
    """

    owner: tuple[int, int] | None
    mode: FileMode | None
    mtime_ns: int


def copy_sources(editor: TreeEditor, sources: Sequence[CopySource], dest: bytes, options: CopyOptions) -> None:
    """Copy the sources to `dest`, an absolute path in the edited tree, `/` at its end when it must be a directory.

    Raises:
        InputError: a file over a directory or a directory over a file, or a path below a file.
    """
    for source in sources:
        into = _Copier(editor, options)
        if source.inode.is_dir:
            into.copy_contents(source.inode, _directory_at(editor, dest, options))
        else:
            into.copy_file(source.inode, _file_target(editor, dest, source.name, options, several=len(sources) > 1))


def _owner(options: CopyOptions) -> tuple[int, int]:
    return options.owner or (0, 0)


def _directory_at(editor: TreeEditor, dest: bytes, options: CopyOptions) -> Parts:
    found = resolve(editor.root, dest)
    if found.inode is not None and not found.inode.is_dir:
        raise InputError("a directory cannot be copied over a file", where=_shown(found.parts))
    uid, gid = _owner(options)
    editor.make_directories(found.parts, mode=0o755, uid=uid, gid=gid, mtime_ns=options.mtime_ns)
    return found.parts


def _file_target(editor: TreeEditor, dest: bytes, name: bytes, options: CopyOptions, *, several: bool) -> Parts:
    found = resolve(editor.root, dest)
    if several or dest.endswith((b"/", b"/.")) or (found.inode is not None and found.inode.is_dir):
        return (*_directory_at(editor, dest, options), name)
    if found.inode is None:
        uid, gid = _owner(options)
        editor.make_directories(found.parts[:-1], mode=0o755, uid=uid, gid=gid, mtime_ns=options.mtime_ns)
    return found.parts


class _Copier:
    """Copies one source; hard links inside it stay hard links."""

    def __init__(self, editor: TreeEditor, options: CopyOptions) -> None:
        self.editor = editor
        self.options = options
        self._copies: dict[int, Inode] = {}

    def copy_contents(self, source: Inode, target: Parts) -> None:
        pending: list[tuple[Inode, Parts]] = [(source, target)]
        while pending:
            directory, parts = pending.pop()
            for name in sorted(directory.entries):
                child, child_parts = directory.entries[name], (*parts, name)
                if child.is_dir:
                    self._copy_directory(child, child_parts)
                    pending.append((child, child_parts))
                else:
                    self.copy_file(child, child_parts)

    def _copy_directory(self, source: Inode, parts: Parts) -> None:
        there = self.editor.directory(parts[:-1]).entries.get(parts[-1])
        changed = self._changed(source)
        if there is None:
            self.editor.put(parts, replace(changed, body={}))
        elif there.is_dir:
            self.editor.set_attributes(parts, changed)
        else:
            raise InputError("a directory cannot be copied over a file", where=_shown(parts))

    def copy_file(self, source: Inode, parts: Parts) -> None:
        there = self.editor.directory(parts[:-1]).entries.get(parts[-1])
        if there is not None and there.is_dir:
            raise InputError("a file cannot be copied over a directory", where=_shown(parts))
        copied = self._copies.get(id(source))
        if copied is None:
            copied = self._copies[id(source)] = self._changed(source)
        self.editor.put(parts, copied)

    def _changed(self, inode: Inode) -> Inode:
        mode = inode.mode
        if self.options.mode is not None and not inode.is_symlink:
            mode = stat.S_IFMT(mode) | self.options.mode.on(mode, is_directory=inode.is_dir)
        uid, gid = self.options.owner or (inode.uid, inode.gid)
        return replace(inode, mode=mode, uid=uid, gid=gid, xattrs=dict(inode.xattrs))


def _shown(parts: Parts) -> str:
    return join(parts).decode("utf-8", "backslashreplace")
