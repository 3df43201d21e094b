"""Records a matrix of runs in parallel on one GPU.

usage: python matrix.py NANOGPT OUT [SECONDS]

NANOGPT is a folder with nanoGPT's train.py, model.py and configurator.py; random tokens are made as its data. For each
run OUT/NAME.json.gz is written as record.py says, and for compiled ones OUT/NAME.code.gz with Inductor's programs.
Runs start in order while cores and GPU memory last; what has not started by SECONDS is left out, and said.
"""
import glob, gzip, os, pickle, shutil, subprocess, sys, threading, time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
NANOGPT, OUT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
DEADLINE = time.time() + float(sys.argv[3] if len(sys.argv) > 3 else 1e9)
BASE = dict(eval_iters=2, eval_interval=1000, max_iters=3, gradient_accumulation_steps=2)
SMALL = dict(n_layer=3, n_head=4, n_embd=256, block_size=256, batch_size=6)
MED = dict(n_layer=24, n_head=16, n_embd=1024)
LARGE = dict(n_layer=36, n_head=20, n_embd=1280)
CHAR = dict(dataset="shakespeare_char", batch_size=64, block_size=256, n_layer=6, n_head=6, n_embd=384, dropout=0.2)
X = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
SPLIT = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}
DDP = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}

# name, settings, environment, flags of record.py; compile is told by a letter before the name. What ends in _save is also resumed.
SMALLS = [
    ("small", {}, {}),
    ("small_fp32", dict(dtype="float32"), {}),
    ("small_fp16", dict(dtype="float16"), {}),
    ("small_drop", dict(dropout=0.1), {}),
    ("small_bias", dict(bias=True), {}),
    ("small_ga1", dict(gradient_accumulation_steps=1), {}),
    ("small_ga3", dict(gradient_accumulation_steps=3), {}),
    ("small_hs48", dict(n_head=5, n_embd=240, block_size=200), {}),
    ("small_hs36", dict(n_head=5, n_embd=180, block_size=72, dataset="v65"), {}),
    ("small_hs128", dict(n_head=2, dataset="v1000"), {}),
    ("small_hs160", dict(n_head=2, n_embd=320, dataset="v50257"), {}),
    ("small_noclip", dict(grad_clip=0.0), {}),
    ("small_all16", dict(dtype="float16", bias=True, dropout=0.2, dataset="v65"), {}),
    ("small_all32", dict(dtype="float32", bias=True, dropout=0.2), {}),
    ("small_ddp", dict(n_embd=512, n_head=8), DDP),
    ("small_x", {}, X),
    ("small_save", dict(eval_interval=2, max_iters=2, out_dir="out_OWN"), {}),
]
REALS = [
    ("b12", dict(batch_size=12), {}),
    ("drop_b6_fp16", dict(batch_size=6, dropout=0.1, dtype="float16"), {}),
    ("bias_b8", dict(batch_size=8, bias=True), {}),
    ("med_b2", dict(batch_size=2, **MED), {}),
    ("ga1_b6", dict(batch_size=6, gradient_accumulation_steps=1), {}),
    ("t768_b5", dict(batch_size=5, block_size=768), {}),
    ("split_b8", dict(batch_size=8), SPLIT),
    ("x_b8", dict(batch_size=8), X),
    ("char128", dict(CHAR, batch_size=128, n_layer=4, dropout=0.0, bias=True), {}),
    ("d640_l7_b3", dict(batch_size=3, n_layer=7, n_embd=640, n_head=10), {}),
    ("fp32_b6", dict(batch_size=6, dtype="float32"), {}),
    ("large_b1", dict(batch_size=1, **LARGE), {}),
    ("b24", dict(batch_size=24), {}),
]

# A second matrix, for judging predictions made from the first.
MORE = [
    ("char", CHAR, {}, []),
    ("v50257_b4", dict(batch_size=4, dataset="v50257"), {}, []),
    ("small_ampere", SMALL, {}, ["--ampere"]),
    ("b8_ampere", dict(batch_size=8), {}, ["--ampere"]),
    ("med_bias_b3", dict(batch_size=3, bias=True, **MED), {}, []),
    ("t2048_b2", dict(batch_size=2, block_size=2048), {}, []),
    ("l18_d896_b5", dict(batch_size=5, n_layer=18, n_head=14, n_embd=896), {}, []),
    ("small_all16_ampere", dict(SMALL, dtype="float16", bias=True, dropout=0.2), {}, ["--ampere"]),
    ("drop_bias_fp16_b5", dict(batch_size=5, dropout=0.1, bias=True, dtype="float16"), {}, []),
    ("h6_b7_ga5", dict(batch_size=7, n_head=6, gradient_accumulation_steps=5), {}, []),
    ("b28", dict(batch_size=28), {}, []),
    ("resume_b4_save", dict(batch_size=4, eval_interval=2, max_iters=2, out_dir="out_OWN"), {}, []),
    ("large_b3", dict(batch_size=3, **LARGE), {}, []),
    ("t256_b20_x", dict(batch_size=20, block_size=256), X, []),
]


def matrix():
    if os.environ.get("MATRIX") == "more":
        for name, settings, env, flags in MORE:
            for mode in "ce":
                yield f"{mode}_{name}", settings, env, flags
        return
    yield "e_small_cpp", dict(SMALL, n_layer=2, n_head=3, n_embd=192), {}, ["--cpp"]
    yield "e_small_cpp16", dict(SMALL, n_layer=2, bias=True, dropout=0.1, dtype="float16", n_head=3, n_embd=192), {}, ["--cpp"]
    for mode in "ce":
        for name, settings, env in SMALLS[:5]:
            yield f"{mode}_{name}", dict(SMALL, **settings), env, []
    for name, settings, env in REALS[:8]:
        for mode in "ce":
            yield f"{mode}_{name}", settings, env, []
    for name, settings, env in SMALLS[5:]:
        for mode in "ce":
            yield f"{mode}_{name}", dict(SMALL, **settings), env, []
    for name, settings, env in REALS[8:]:
        for mode in "ce":
            yield f"{mode}_{name}", settings, env, []


def prepare():
    rng = np.random.default_rng(7)
    for name, vocab in ("openwebtext", 50304), ("shakespeare_char", 65), ("v65", 65), ("v1000", 1000), ("v50257", 50257):
        folder = os.path.join(NANOGPT, "data", name)
        os.makedirs(folder, exist_ok=True)
        for part in "train", "val":
            tokens = (rng.zipf(1.2, 200_000) - 1) % vocab
            tokens.astype(np.uint16).tofile(os.path.join(folder, part + ".bin"))
        if name != "openwebtext":
            with open(os.path.join(folder, "meta.pkl"), "wb") as f:
                pickle.dump({"vocab_size": vocab}, f)


def run(name, settings, env, flags):
    cache = os.path.join("/tmp", "inductor_" + name)
    env = dict(os.environ, **env, TORCHINDUCTOR_CACHE_DIR=cache, TRITON_CACHE_DIR=cache + "/triton",
               TORCHINDUCTOR_COMPILE_THREADS="3", TORCH_SYMBOLIZE_MODE="dladdr", OMP_NUM_THREADS="2")
    if "RANK" in env:
        env["MASTER_PORT"] = str(29000 + abs(hash(name)) % 900)
    settings = dict(BASE, **settings, compile=name.startswith("c_"))
    settings.setdefault("out_dir", "out_" + name)
    settings["out_dir"] = settings["out_dir"].replace("OWN", name)
    log = open(os.path.join(OUT, name + ".log"), "w")
    jobs = [(name, settings)]
    if name.endswith("save"):
        jobs.append((name.replace("save", "resume"), dict(settings, init_from="resume", max_iters=3)))
    for job, s in jobs:
        args = [f"--{k}={v}" for k, v in s.items()]
        began = time.time()
        try:
            subprocess.run([sys.executable, os.path.join(HERE, "record.py"), os.path.join(OUT, job + ".json.gz"), *flags, "--", *args],
                           cwd=NANOGPT, env=env, stdout=log, stderr=log, timeout=max(20, DEADLINE + 45 - time.time()))
        except subprocess.TimeoutExpired:
            print("timed out", job, flush=True)
        print(f"{time.time() - began:6.1f} s  {job}", flush=True)
    log.close()
    if name.startswith("c_"):
        with gzip.open(os.path.join(OUT, name + ".code.gz"), "wt") as code:
            files = [f for f in glob.glob(cache + "/*/*.py") if "def call(" in open(f).read()]
            for f in sorted(files, key=os.path.getmtime):
                code.write(f"#### {os.path.basename(f)}\n{open(f).read()}\n")
    shutil.rmtree(cache, ignore_errors=True)
    shutil.rmtree(os.path.join(NANOGPT, settings["out_dir"]), ignore_errors=True)


def main():
    os.makedirs(OUT, exist_ok=True)
    prepare()
    jobs, lock = list(matrix()), threading.Lock()

    def worker():
        while True:
            with lock:
                if not jobs:
                    return
                job = jobs.pop(0)
            if time.time() > DEADLINE:
                print("left out", job[0], flush=True)
                continue
            run(*job)

    workers = [threading.Thread(target=worker) for _ in range(int(os.environ.get("WORKERS", "12")))]
    for w in workers:
        w.start()
    for w in workers:
        w.join()


main()
