"""The bounds of bench/, through the fixture of its own tests."""

from tests.bench.conftest import bench

__all__ = ["bench"]
