"""Assumed paces: of a GPU, of cores over a link, and of cores over a file."""

from asynctile.schedule.pace import pace_of
from asynctile.schedule.rates import CORES, assumed

GPU = pace_of(assumed("cuda:0", "bf16"), has_link=True)
OVER_LINK = pace_of(CORES, has_link=True)
OVER_FILE = pace_of(CORES, has_link=False)
