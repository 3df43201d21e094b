#!/bin/bash
# proof.sh NANOGPT SNUG: docs/run.md's runs, on a machine with an NVIDIA card of 80 GB or more and PyTorch. About four minutes.
# NANOGPT is a checkout of nanoGPT, in which data/openwebtext is made from random tokens; SNUG the binary.
set -u
here=$(cd "$(dirname "$0")" && pwd)
snug=$(realpath "$2")
cd "$1" || exit 1
export PYTHONUNBUFFERED=1 PYTHONPATH=$here/wrap
rm -rf hog.* out-{A,B,C,D,E}
mkdir -p data/openwebtext
python3 -c "
import numpy as np
r = np.random.default_rng(0)
for name, n in (('train', 4_000_000), ('val', 400_000)):
    np.minimum(r.zipf(1.2, n), 50256).astype(np.uint16).tofile('data/openwebtext/%s.bin' % name)"
args="--batch_size=64 --gradient_accumulation_steps=1 --eval_iters=2 --eval_interval=5"
show() { echo "exit $?"; grep -a "snug:" "$1.err"; grep -a "tokens per\|^step\|^iter\|^Resuming" "$1.out"; echo; }

echo "== cards"; "$snug" gpus
echo "== A: plain python under 11.47 GiB"
CAP_GIB=11.47 python3 train.py $args --max_iters=7 --out_dir=out-A > A.out 2> A.err; echo "exit $?"; tail -1 A.err
echo "== B: planned before the start"
CAP_GIB=11.47 "$snug" run --vram=11.47GiB -- python3 train.py $args --max_iters=7 --out_dir=out-B > B.out 2> B.err; show B
echo "== C: started as given"
CAP_GIB=11.47 "$snug" run --no-preflight -- python3 train.py $args --max_iters=7 --out_dir=out-C > C.out 2> C.err; show C
echo "== D: another process takes the memory in the middle"
LEAVE_GIB=12 python3 "$here/hog.py" & hog=$!
EMPTY_AT_SAVE=1 "$snug" run -- python3 train.py $args --max_iters=16 --compile=False --out_dir=out-D > D.out 2> D.err; show D
"$snug" watch --once
touch hog.stop; wait $hog
echo "== E: torchrun, started as given"
CAP_GIB=11.47 "$snug" run --no-preflight -- torchrun --standalone --nproc_per_node=1 train.py $args --max_iters=3 --out_dir=out-E > E.out 2> E.err; show E
