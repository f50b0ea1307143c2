#!/usr/bin/env bash
# Everything that is to be measured on a GPU, in one command of less than 9 minutes.
#
#     bench/gpu.sh [--rehearse] [part ...]
#
# Parts, those that tell most first: tests replay link kernels capped memory largest depth. Each is bench/gpu_<part>.py, which says what
# it asks. Without a part all run, in that order; a part that fails or takes too long does not stop the others, and what it found
# before is kept. Results go to bench/results/cuda_<gpu>_<yyyymm>.md and .json, and to the folder $OUT too if that is set, with
# the whole output in gpu.log. The short table comes last. What a first run should look at, and how to divide the parts among
# several calls, is bench/GPU.md.
#
# --rehearse: the same without a GPU, small, on a driver on the CPU; it needs g++, and its results go to runs/rehearsal.
# PYTHON: the interpreter; .venv/bin/python if there is one, else python3. COMMIT: what is measured, where there is no git.
# TOTAL: seconds for all, 525 if it is not set; parts share what is left of them.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

PARTS=(tests replay link kernels capped memory largest depth)
# Shares of the time; what a part leaves is shared by those behind it. Their sum is the least that all together want.
declare -A SHARE=([tests]=90 [replay]=60 [link]=15 [kernels]=40 [capped]=130 [memory]=85 [largest]=65 [depth]=40)
TOTAL=${TOTAL:-525}
DEVICE=cuda:0 RESULTS=bench/results REHEARSE=()

if [[ ${1:-} == --rehearse ]]; then
    DEVICE=soft RESULTS=runs/rehearsal REHEARSE=(--rehearse)
    shift
fi
if [[ $# -eq 0 ]]; then set -- "${PARTS[@]}"; fi
for part in "$@"; do
    if [[ -z ${SHARE[$part]:-} ]]; then
        echo "bench/gpu.sh: no part is called '$part'; choose among: ${PARTS[*]}" >&2
        exit 2
    fi
done

if [[ -z ${PYTHON:-} ]]; then
    PYTHON=python3
    if [[ -x .venv/bin/python ]]; then PYTHON=.venv/bin/python; fi
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
# They change the speed of every product on the CPU, and each part would start itself again without them.
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE

NEEDED=(torch numpy scipy numba threadpoolctl psutil safetensors aiofiles xxhash tokenizers rich pytest)
if [[ $DEVICE != soft ]]; then NEEDED=(cupy ml_dtypes "${NEEDED[@]}"); fi
missing=$("$PYTHON" - "${NEEDED[@]}" 2>/dev/null <<'END'
import sys
from importlib.util import find_spec
print(" ".join(name for name in sys.argv[1:] if find_spec(name) is None))
END
) || { echo "bench/gpu.sh: $PYTHON does not run; name an interpreter by PYTHON=..." >&2; exit 1; }
if [[ -n $missing ]]; then
    echo "bench/gpu.sh: $PYTHON has no $missing; name another interpreter by PYTHON=..." >&2
    exit 1
fi
"$PYTHON" bench/gpu_report.py check "$DEVICE" || exit 1

started=$SECONDS
ended=()
marker=$(mktemp)
trap 'rm -f "$marker"' EXIT

copy_out() {
    local file
    for file in "$RESULTS"/cuda_*; do
        if [[ -n ${OUT:-} && $file -nt $marker ]]; then cp "$file" "$OUT/"; fi
    done
}

run_part() {
    local part=$1 limit=$2 begun=$SECONDS status=0
    echo
    echo "== $part, at most $limit s"
    # SIGTERM first, and if that is not heard SIGKILL.
    timeout --kill-after=5 "$limit" "$PYTHON" "bench/gpu_$part.py" "${REHEARSE[@]}" --write || status=$?
    ended+=("$part:$status:$((SECONDS - begun))")
    copy_out # now: a lease may end at any moment
}

all() {
    local part limit later shares
    echo
    echo "== kernels are compiled, before anything is timed"
    timeout --kill-after=5 $((TOTAL / 5)) "$PYTHON" bench/gpu_warm.py "${REHEARSE[@]}"
    while [[ $# -gt 0 ]]; do
        part=$1 shares=0
        for later in "$@"; do shares=$((shares + SHARE[$later])); done
        shift
        limit=$(((TOTAL - (SECONDS - started)) * SHARE[$part] / shares))
        if [[ $limit -lt 1 ]]; then
            ended+=("$part:-1:0")
            continue
        fi
        run_part "$part" "$limit"
    done
    echo
    "$PYTHON" bench/gpu_report.py table "$DEVICE" "${ended[@]}"
}

if [[ -n ${OUT:-} ]]; then
    all "$@" 2>&1 | tee "$OUT/gpu.log"
else
    all "$@"
fi
