"""Only what pyproject.toml cannot say: a wheel that carries the libraries belongs to one platform."""

import pathlib
import platform

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.dist import Distribution

LIBRARIES = sorted(pathlib.Path(__file__).parent.glob("ebb/lib/torch_memory_saver/*.so"))


class WithLibraries(Distribution):
    def has_ext_modules(self):
        return bool(LIBRARIES)


class Wheel(bdist_wheel):
    def get_tag(self):
        # The libraries know nothing of Python, and need glibc 2.34.
        return ("py3", "none", f"manylinux_2_34_{platform.machine()}") if LIBRARIES else super().get_tag()


setup(distclass=WithLibraries, cmdclass={"bdist_wheel": Wheel})
