"""Runs nanoGPT's unmodified train.py once and writes down what its memory did.

usage: python record.py OUT.json.gz [--cpp] [--ampere] -- [train.py's own arguments]      (inside nanoGPT's folder)

OUT.json.gz is lines of JSON. The first is the summary: config, environment, statistics per phase as in
internal/torch/testdata/torch-memory.jsonl. The second is the table of stacks. Every further line is one allocator event:
[action, address, size, stack, phase], in order. --cpp records C++ frames too, which name autograd's nodes in backward.
--ampere makes a Hopper card choose what PyTorch chooses on Ampere and Ada: FlashAttention and cuBLAS's small workspace.
"""
import builtins, gzip, json, os, runpy, subprocess, sys, time

split = sys.argv.index("--")
out, flags, args = sys.argv[1], sys.argv[2:split], sys.argv[split + 1:]
cpp = "--cpp" in flags
if "--ampere" in flags:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:2:16:8"

import torch

if "--ampere" in flags:
    torch.backends.cuda.enable_cudnn_sdp(False)

torch.cuda.memory._record_memory_history(
    enabled="all", context="all", stacks="all" if cpp else "python", max_entries=10_000_000)

summary = {"config": {}, "env": {k: v for k, v in os.environ.items() if "ALLOC_CONF" in k or k == "WORLD_SIZE"},
           "ampere": "--ampere" in flags,
           "gpu": torch.cuda.get_device_name(0), "torch": torch.__version__}
for a in args:
    key, _, value = a.lstrip("-").partition("=")
    try:
        summary["config"][key] = eval(value, {})
    except Exception:
        summary["config"][key] = value
marks = []  # (time in microseconds, name of the phase that ends there)


def mark(name):
    marks.append((time.time_ns() // 1000, name))
    s = torch.cuda.memory_stats()
    phase = summary.setdefault(name, {})
    phase["peak_allocated"] = max(phase.get("peak_allocated", 0), s["allocated_bytes.all.peak"])
    phase["peak_reserved"] = max(phase.get("peak_reserved", 0), s["reserved_bytes.all.peak"])
    phase["after"] = s["allocated_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()


plain = builtins.print
seen = {"step": 0, "iter": 0}


def watching(*a, **k):
    plain(*a, **k)
    text = str(a[0]) if a else ""
    if text.startswith("num decayed parameter tensors"):
        summary["after_init"] = torch.cuda.memory_allocated()
        marks.append((time.time_ns() // 1000, "init"))
    elif text.startswith("step "):
        mark("eval" if not seen["iter"] else "later_eval")
    elif text.startswith("iter "):
        mark("step" if seen["iter"] else "first_step")
        seen["iter"] += 1


builtins.print = watching
sys.argv = ["train.py"] + args
sys.path.insert(0, os.getcwd())
try:
    runpy.run_path("train.py", run_name="__main__")
except torch.OutOfMemoryError as e:
    summary["error"] = str(e)
builtins.print = plain

smi = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
                     capture_output=True, text=True).stdout
for line in smi.splitlines():
    pid, used = line.split(",")
    if int(pid) == os.getpid():
        summary["process_mib"] = int(used)

table, index = [], {}


def stack(frames):
    if cpp:
        names = [f["name"][:140] for f in frames if "THP" not in f["name"] and "_Py" not in f["name"]][:40]
    else:
        names = [f'{os.path.basename(f["filename"])}:{f["line"]}:{f["name"]}' for f in frames[:7]]
    key = "|".join(names)
    if key not in index:
        index[key] = len(table)
        table.append(key)
    return index[key]


events, m = [], 0
for e in torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]:
    while m < len(marks) and e["time_us"] > marks[m][0]:
        m += 1
    if e["action"] in ("snapshot", "free_requested"):
        continue
    phase = marks[m][1] if m < len(marks) else "end"
    events.append([e["action"], e["addr"], e["size"], stack(e.get("frames", [])), phase])
with gzip.open(out, "wt") as f:
    for line in [summary, table] + events:
        f.write(json.dumps(line) + "\n")
plain("recorded", out, len(events), "events", json.dumps(summary))
