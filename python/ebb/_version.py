"""Version of the package: that of the libraries it belongs to."""

__version__ = "0.1.0"
