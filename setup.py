"""Builds what is C: the cffi core, and the static programs that run beside Python (agent, holder)."""

import os
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext

PROGRAMS = {
    "layerkit/runtime/_bin/layerkit-agent": "layerkit/runtime/agent",
    "layerkit/runtime/_bin/layerkit-launch": "layerkit/runtime/launch",
}


class BuildPrograms(build_ext):
    """The extension modules first, then every static program, beside the sources and into the build folder."""

    def run(self) -> None:
        """Build everything."""
        super().run()
        for target, folder in PROGRAMS.items():
            sources = sorted(str(path) for path in Path(folder).glob("*.c"))
            if not sources:
                continue
            places = [Path(target)] if self.inplace else [Path(self.build_lib) / target]
            for place in places:
                place.parent.mkdir(parents=True, exist_ok=True)
                compiler = os.environ.get("CC", "cc")
                flags = ["-static", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror=implicit-function-declaration"]
                subprocess.run([compiler, *flags, "-o", str(place), *sources], check=True)


setup(cffi_modules=["layerkit/core/build_core.py:ffibuilder"], cmdclass={"build_ext": BuildPrograms})
