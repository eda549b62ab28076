"""What a layer's facts say as a whole: libraries, interpreters, packages. Pure; imported by the command line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from layerkit.layer.facts import Facts

MANAGERS = ("dpkg", "python")


@dataclass(frozen=True, slots=True)
class FactsSummary:
    """The facts of many files, counted.

    Attributes:
        elf_files, scripts: how many.
        machines, libcs, interpreters: how many files have each.
        provides: highest version defined of GLIBC and GLIBCXX: what the layer's own libraries offer.
        needs: highest version needed of them.
        packages: how many of each manager.
    """

    elf_files: int
    scripts: int
    machines: dict[str, int]
    libcs: dict[str, int]
    interpreters: dict[str, int]
    provides: dict[str, str]
    needs: dict[str, str]
    packages: dict[str, int]


def summarize(facts: Facts) -> FactsSummary:
    """Count what the facts say."""
    elf, scripts = list(facts.elf.values()), list(facts.scripts.values())
    interpreters = [*(one.interpreter for one in elf), *(one.interpreter for one in scripts)]
    return FactsSummary(
        elf_files=len(elf), scripts=len(scripts),
        machines=_counted(one.machine for one in elf), libcs=_counted(one.libc for one in elf if one.libc),
        interpreters=_counted(name for name in interpreters if name),
        provides=_highest(one.defines for one in elf), needs=_highest(one.needs for one in elf),
        packages={manager: count for manager in MANAGERS if (count := len(facts.packages(manager)))},
    )  # fmt: skip


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(Counter(words).most_common())


def _highest(found: Iterable[dict[str, str]]) -> dict[str, str]:
    best: dict[str, str] = {}
    for versions in found:
        for name, version in versions.items():
            best[name] = max(best.get(name, version), version, key=_numbers)
    return dict(sorted(best.items()))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
