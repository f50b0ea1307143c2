#!/usr/bin/env bash
# Measure everything that needs a GPU, in one command of less than 9 minutes.
#
#     bench/gpu.sh [--rehearse] [part ...]
#
# Parts, the most important first: smoke tests race replay link kernels capped memory largest depth two. Each is
# bench/gpu_<part>.py, which states its question. `two` compares two GPUs with one where there are two, and lets two engines share
# one GPU. Without a part all run, in that order. A part that fails or takes too long
# does not stop the others, and its rows so far are kept. Results go to bench/results/cuda_<gpu>_<yyyymm>.md and .json. If $OUT
# is set, they are also copied to that folder every 15 seconds, with the whole output in gpu.log. The short table comes last.
# bench/GPU.md says what to prepare (bench/gpu_prepare.sh), how to divide the parts among several calls, and what to look at in
# a first run.
#
# --rehearse: the same without a GPU, small, on a driver on the CPU. It needs g++, and its results go to runs/rehearsal.
# PYTHON: the interpreter; .venv/bin/python if it exists, otherwise python3.
# COMMIT: the commit that is measured, for sources without git; by default the content of .gpu/commit (bench/gpu_prepare.sh).
# TOTAL: seconds for all parts together, 525 by default and 7200 in a rehearsal.
# EVERY: seconds between two copies to $OUT.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

PARTS=(smoke tests race replay link kernels capped memory largest depth two)
# Shares of the time. If a part takes less than its share, the later parts share the rest.
declare -A SHARE=([smoke]=60 [tests]=120 [race]=60 [replay]=60 [link]=15 [kernels]=40 [capped]=130 [memory]=85 [largest]=65 [depth]=40 [two]=40)
# The most seconds of a part.
declare -A MOST=([smoke]=60 [race]=60)
DEVICE=cuda:0 RESULTS=bench/results REHEARSE=()

if [[ ${1:-} == --rehearse ]]; then
    DEVICE=soft RESULTS=runs/rehearsal REHEARSE=(--rehearse)
    MOST=() TOTAL=${TOTAL:-7200} # the CPU driver is slow, and there is no lease that ends
    shift
fi
TOTAL=${TOTAL:-525} EVERY=${EVERY:-15}
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
if [[ -z ${COMMIT:-} && -r .gpu/commit ]]; then COMMIT=$(<.gpu/commit); fi
export COMMIT=${COMMIT:-unknown}
# Both variables change the speed of every product on the CPU, and each part would restart itself without them.
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE

site=$(mktemp -d) marker=$(mktemp) copying=
trap 'rm -rf "$site" "$marker"; if [[ -n $copying ]]; then kill "$copying" 2>/dev/null; fi' EXIT
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
if [[ $DEVICE != soft ]] && compgen -G '.gpu/wheels/*.whl' >/dev/null; then
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" .gpu/wheels/*.whl \
        || echo "bench/gpu.sh: the wheels of .gpu were not installed; attention is asynctile's own" >&2
    export PYTHONPATH="$PYTHONPATH:$site"
fi
"$PYTHON" bench/gpu_report.py check "$DEVICE" || exit 1

started=$SECONDS
ended=()

copy_out() {
    local file
    for file in "$RESULTS"/cuda_*; do
        if [[ -n ${OUT:-} && $file -nt $marker ]]; then cp "$file" "$OUT/"; fi
    done
}

# A lease may end at any moment, and a part may hang.
copy_always() {
    while sleep "$EVERY"; do copy_out; done
}

run_part() {
    local part=$1 limit=$2 begun=$SECONDS status=0
    echo
    echo "== $part, at most $limit s"
    # Send SIGTERM first, and SIGKILL if the part ignores it.
    timeout --kill-after=5 "$limit" "$PYTHON" "bench/gpu_$part.py" "${REHEARSE[@]}" --write || status=$?
    ended+=("$part:$status:$((SECONDS - begun))")
    copy_out
}

all() {
    local part limit later shares warm=
    if [[ -d .gpu/cubins && $DEVICE != soft ]]; then "$PYTHON" bench/gpu_cubin.py bring .gpu; fi
    while [[ $# -gt 0 ]]; do
        part=$1 shares=0
        if [[ -z $warm && $part != smoke ]]; then
            echo
            echo "== kernels are compiled, before anything is timed"
            timeout --kill-after=5 $((TOTAL / 5)) "$PYTHON" bench/gpu_warm.py "${REHEARSE[@]}"
            warm=yes
        fi
        for later in "$@"; do shares=$((shares + SHARE[$later])); done
        shift
        limit=$(((TOTAL - (SECONDS - started)) * SHARE[$part] / shares))
        if [[ $limit -gt ${MOST[$part]:-$limit} ]]; then limit=${MOST[$part]}; fi
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
    copy_always >/dev/null 2>&1 &
    copying=$!
    all "$@" 2>&1 | tee "$OUT/gpu.log"
else
    all "$@"
fi
