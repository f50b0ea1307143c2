"""Ray: runs of `asynctile train` on the workers of a Ray cluster. Needs the extra `ray`, which an import does not."""

from asynctile.ray.trainer import RayTrainer

__all__ = ["RayTrainer"]
