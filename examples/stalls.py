"""Which tile stalled a training most, and what did it wait for? Reads a trace of `--trace` or `engine.start_trace`.

    python examples/stalls.py trace.json
"""

import json
import sys
from collections import Counter

if len(sys.argv) != 2:
    sys.exit("usage: python examples/stalls.py trace.json, with a trace of `asynctile train --trace` or `engine.start_trace`")
with open(sys.argv[1], encoding="utf-8") as file:
    stalls = [event["args"] for event in json.load(file) if event["ph"] == "X" and event["cat"] == "stall"]
if not stalls:
    sys.exit("nothing stalled")
tiles: Counter[str] = Counter()
reasons: dict[str, Counter[str]] = {}
for stall in stalls:
    tiles[stall["tile"]] += stall["idle_us"]
    reasons.setdefault(stall["tile"], Counter())[stall["waits_for"]] += stall["idle_us"]
print(f"{sum(tiles.values()) / 1e3:.1f} ms in which a thread had nothing to run, in {len(stalls)} stalls")
for tile, idle_us in tiles.most_common(5):
    (reason, of_that), *_ = reasons[tile].most_common(1)
    print(f"{idle_us / 1e3:9.1f} ms for {tile}, mostly {reason} ({of_that / 1e3:.1f} ms)")
