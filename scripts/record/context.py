"""Says what a CUDA process takes besides its tensors, and why: each line is a step and nvidia-smi's figure after it, in MiB."""
import ctypes, os, subprocess, sys


def used():
    smi = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
                         capture_output=True, text=True).stdout
    return next((int(l.split(",")[1]) for l in smi.splitlines() if int(l.split(",")[0]) == os.getpid()), 0)


def say(what):
    print(f"{used():6d}  {what}", flush=True)


cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
ctx, dev = ctypes.c_void_p(), ctypes.c_int()
cuda.cuDeviceGet(ctypes.byref(dev), 0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctx), dev)
cuda.cuCtxSetCurrent(ctx)
say("primary context")
size = ctypes.c_size_t()
for name, limit in ("stack", 0), ("printf fifo", 1), ("malloc heap", 2):
    cuda.cuCtxGetLimit(ctypes.byref(size), limit)
    print(f"        limit {name}: {size.value}")
import torch
torch.cuda.init()
say("torch.cuda.init")
print("       ", torch.cuda.get_device_properties(0))
x = torch.empty(1, device="cuda")
say("empty tensor (a 2 MiB segment)")
x.zero_()
say("fill kernel")
a = torch.randn(1024, 1024, device="cuda")
say("randn (a 20 MiB segment)")
b = a.bfloat16()
say("cast")
c = b @ b
say(f"cuBLAS bf16 matmul (reserved now {torch.cuda.memory_reserved() >> 20} MiB)")
a @ a
say(f"cuBLAS fp32 matmul (reserved now {torch.cuda.memory_reserved() >> 20} MiB)")
q = torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
o = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
say(f"flash attention forward (reserved now {torch.cuda.memory_reserved() >> 20} MiB)")
o.sum().backward()
say(f"and backward (reserved now {torch.cuda.memory_reserved() >> 20} MiB)")
ln = torch.nn.functional.layer_norm(a.requires_grad_(), (1024,))
torch.nn.functional.gelu(ln).sum().backward()
say(f"layer_norm, gelu (reserved now {torch.cuda.memory_reserved() >> 20} MiB)")
for stack in 2048, 4096:
    cuda.cuCtxSetLimit(0, ctypes.c_size_t(stack))
    x.zero_()
    torch.cuda.synchronize()
    say(f"stack limit {stack} (reserved now {torch.cuda.memory_reserved() >> 20} MiB)")
