"""Builds the C library of native/ wherever setuptools builds or installs Tiermesh. All else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).parent))  # a build has no path to this folder before

from native import Unusable
from native.build import compile_library
from native.sources import FOLDER


class BuildLibrary(build_ext):
    """Compiles the library by native/build.py, whatever compiler and flags this Python was built with."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the path of the library, which is none of this Python alone."""
        return f"{Path(*fullname.split('.'))}.so"

    def build_extension(self, ext: Extension) -> None:
        """Compile the library."""
        try:
            compile_library(Path(self.get_ext_fullpath(ext.name)))
        except Unusable as error:
            raise SystemExit(str(error)) from None


sources = sorted(f"native/{path.name}" for path in FOLDER.glob("*.c"))
setup(ext_modules=[Extension("native.libtiermesh", sources)], cmdclass={"build_ext": BuildLibrary})
