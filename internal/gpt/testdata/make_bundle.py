#!/usr/bin/env python3
"""Writes a bundle: what PyTorch computes for a small GPT, for snug's executors to be compared with.

    make_bundle.py                          every bundle of BUNDLES, beside this file
    make_bundle.py --name=curve --out=DIR --n_layer=4 --n_embd=128 --steps=200 --learning_rate=1e-3 --without=grad,final,logits

The model is nanoGPT's mathematics written as functions over a dictionary of tensors. README.md says what a bundle holds.
Needs torch and safetensors; snug's tests need neither.
"""
import argparse
import json
import math
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

DEFAULTS = dict(
    n_layer=2, n_head=3, n_embd=24, block_size=13, vocab_size=61, bias=True, init_scale=5.0,
    batch_size=2, gradient_accumulation_steps=1, steps=20, seed=1,
    learning_rate=1e-2, min_lr=1e-3, warmup_iters=3, lr_decay_iters=18,
    weight_decay=0.1, beta1=0.9, beta2=0.95, grad_clip=1.0,
)

# Committed bundles: odd sizes, with and without bias, accumulation 1 and 4, and one that never clips.
BUNDLES = {
    "bias": dict(),
    "bias_accum4": dict(n_layer=1, n_head=1, n_embd=20, block_size=16, vocab_size=65, batch_size=3, gradient_accumulation_steps=4, seed=2),
    "nobias": dict(bias=False, n_layer=3, n_head=4, n_embd=16, block_size=9, vocab_size=37, batch_size=5, grad_clip=0.0, seed=3),
    "nobias_accum4": dict(bias=False, n_head=2, n_embd=22, block_size=7, vocab_size=53, batch_size=1, gradient_accumulation_steps=4, seed=4),
}


def shapes(c):
    """Parameter names and shapes in nanoGPT's order. lm_head is wte."""
    C, out = c["n_embd"], {}

    def affine(name, *shape):
        out[name + ".weight"] = shape
        if c["bias"]:
            out[name + ".bias"] = shape[:1]

    out["transformer.wte.weight"] = (c["vocab_size"], C)
    out["transformer.wpe.weight"] = (c["block_size"], C)
    for i in range(c["n_layer"]):
        h = f"transformer.h.{i}."
        affine(h + "ln_1", C)
        affine(h + "attn.c_attn", 3 * C, C)
        affine(h + "attn.c_proj", C, C)
        affine(h + "ln_2", C)
        affine(h + "mlp.c_fc", 4 * C, C)
        affine(h + "mlp.c_proj", C, 4 * C)
    affine("transformer.ln_f", C)
    return out


def initial(c):
    """Random weights, larger than a fresh model's so that no gradient is near zero, and no bias or gain at its neutral value."""
    g = torch.Generator().manual_seed(c["seed"])
    std = 0.02 * c["init_scale"]
    params = {}
    for name, shape in shapes(c).items():
        w = torch.randn(shape, generator=g) * std
        params[name] = w + 1 if len(shape) == 1 and name.endswith("weight") else w
    return params


def batches(c):
    """Tokens (steps, accumulation, B, T+1): the next token is a function of the last one, with one in four at random."""
    g = torch.Generator().manual_seed(c["seed"] + 1000)
    V, shape = c["vocab_size"], (c["steps"], c["gradient_accumulation_steps"], c["batch_size"])
    tok = torch.empty(*shape, c["block_size"] + 1, dtype=torch.int64)
    tok[..., 0] = torch.randint(V, shape, generator=g)
    for t in range(1, c["block_size"] + 1):
        noise = torch.randint(V, shape, generator=g)
        keep = torch.rand(shape, generator=g) >= 0.25
        tok[..., t] = torch.where(keep, (5 * tok[..., t - 1] + 7) % V, noise)
    return tok


def layernorm(p, name, x):
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    y = (x - mean) / torch.sqrt(var + 1e-5) * p[name + ".weight"]
    return y + p[name + ".bias"] if name + ".bias" in p else y


def linear(p, name, x):
    y = x @ p[name + ".weight"].T
    return y + p[name + ".bias"] if name + ".bias" in p else y


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def attention(p, h, x, heads):
    B, T, C = x.shape
    # (B, T, 3C) -> three of (B, NH, T, HS)
    q, k, v = linear(p, h + "attn.c_attn", x).view(B, T, 3, heads, C // heads).permute(2, 0, 3, 1, 4)
    score = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(C // heads)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    prob = torch.softmax(score.masked_fill(future, float("-inf")), -1)
    y = torch.einsum("bhqk,bhkd->bqhd", prob, v).reshape(B, T, C)
    return linear(p, h + "attn.c_proj", y)


def forward(c, p, idx):
    """Logits (B, T, V) for tokens (B, T)."""
    wte = p["transformer.wte.weight"]
    x = wte[idx] + p["transformer.wpe.weight"][: idx.shape[1]]
    for i in range(c["n_layer"]):
        h = f"transformer.h.{i}."
        x = x + attention(p, h, layernorm(p, h + "ln_1", x), c["n_head"])
        x = x + linear(p, h + "mlp.c_proj", gelu(linear(p, h + "mlp.c_fc", layernorm(p, h + "ln_2", x))))
    return layernorm(p, "transformer.ln_f", x) @ wte.T


def learning_rate(c, it):
    """Linear warm-up, half a cosine down to min_lr, then min_lr; 0 <= it < steps."""
    lr, low, warm, end = c["learning_rate"], c["min_lr"], c["warmup_iters"], c["lr_decay_iters"]
    if it < warm:
        return lr * (it + 1) / (warm + 1)
    if it > end:
        return low
    return low + 0.5 * (1 + math.cos(math.pi * (it - warm) / (end - warm))) * (lr - low)


def train(c, params, tok, dtype):
    """Runs every step in dtype. Returns the losses, gradient norms, first logits and gradients, and the last parameters."""
    p = {n: w.to(dtype, copy=True).requires_grad_() for n, w in params.items()}
    groups = [
        dict(params=[w for w in p.values() if w.dim() >= 2], weight_decay=c["weight_decay"]),
        dict(params=[w for w in p.values() if w.dim() < 2], weight_decay=0.0),
    ]
    opt = torch.optim.AdamW(groups, lr=c["learning_rate"], betas=(c["beta1"], c["beta2"]), eps=1e-8)
    A, limit = c["gradient_accumulation_steps"], c["grad_clip"] or float("inf")
    losses, norms, first = [], [], {}
    for it in range(c["steps"]):
        for group in opt.param_groups:
            group["lr"] = learning_rate(c, it)
        opt.zero_grad()
        total = 0.0
        for micro in tok[it]:
            logits = forward(c, p, micro[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), micro[:, 1:].flatten()) / A
            loss.backward()
            total += loss.item()
            first.setdefault("logits", logits.detach().clone())
        first.setdefault("grad", {n: w.grad.clone() for n, w in p.items()})
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), limit).item())
        losses.append(total)
        opt.step()
    return losses, norms, first["logits"], first["grad"], {n: w.detach() for n, w in p.items()}


def write(path, c, without):
    params, tok = initial(c), batches(c)
    losses, norms, logits, grads, final = train(c, params, tok, torch.float64)
    losses32, norms32, *_ = train(c, params, tok, torch.float32)

    f64 = lambda xs: torch.tensor(xs, dtype=torch.float64)
    tensors = {"tokens": tok.to(torch.int32), "logits": logits.float(),
               "loss": f64(losses), "norm": f64(norms), "loss_f32": f64(losses32), "norm_f32": f64(norms32),
               "lr": f64([learning_rate(c, it) for it in range(c["steps"])])}
    for kind, group in dict(param=params, grad=grads, final=final).items():
        tensors |= {f"{kind}.{n}": w.float() for n, w in group.items()}
    tensors = {n: w.contiguous() for n, w in tensors.items() if n.split(".")[0] not in without}
    save_file(tensors, path, metadata={"config": json.dumps(c), "torch": torch.__version__})
    clipped = sum(n > c["grad_clip"] > 0 for n in norms)
    print(f"{path}: {os.path.getsize(path)} bytes, loss {losses[0]:.4f} -> {losses[-1]:.4f}, {clipped} of {c['steps']} steps clipped, "
          f"float32 differs by at most {max(abs(a - b) for a, b in zip(losses, losses32)):.1e}")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)))
    ap.add_argument("--name", help="one bundle with the settings below, instead of every one of BUNDLES")
    ap.add_argument("--without", default="", help="kinds of tensors to leave out: grad,final,logits")
    for key, value in DEFAULTS.items():
        kind = (lambda s: s.lower() in ("1", "true")) if isinstance(value, bool) else type(value)
        ap.add_argument(f"--{key}", type=kind, default=value)
    args = vars(ap.parse_args())
    todo = {args["name"]: {k: args[k] for k in DEFAULTS}} if args["name"] else {n: DEFAULTS | c for n, c in BUNDLES.items()}
    torch.manual_seed(0)
    for name, c in todo.items():
        write(os.path.join(args["out"], f"bundle_{name}.safetensors"), c, args["without"].split(","))


if __name__ == "__main__":
    main()
