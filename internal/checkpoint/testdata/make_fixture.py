#!/usr/bin/env python3
"""Writes ckpt.pt as nanoGPT's train.py does, for the reader's test. Needs torch; the test does not.

Element j of parameter i is 1000*i + j; its exp_avg is 0.5 more, its exp_avg_sq 0.25 more. The model's keys carry
torch.compile's prefix, and best_val_loss is a tensor, as in checkpoints of real runs.
"""
import os
from collections import OrderedDict

import torch

L, C, T, V = 2, 4, 3, 5
shapes = OrderedDict([("transformer.wte.weight", (V, C)), ("transformer.wpe.weight", (T, C))])
for i in range(L):
    for name, shape in [("ln_1", (C,)), ("attn.c_attn", (3 * C, C)), ("attn.c_proj", (C, C)), ("ln_2", (C,)), ("mlp.c_fc", (4 * C, C)), ("mlp.c_proj", (C, 4 * C))]:
        shapes[f"transformer.h.{i}.{name}.weight"] = shape
        shapes[f"transformer.h.{i}.{name}.bias"] = shape[:1]
shapes["transformer.ln_f.weight"] = shapes["transformer.ln_f.bias"] = (C,)

params = OrderedDict()
for i, (name, shape) in enumerate(shapes.items()):
    n = torch.Size(shape).numel()
    params[name] = torch.nn.Parameter((1000 * i + torch.arange(n)).float().view(shape))
groups = [dict(params=[p for p in params.values() if p.dim() >= 2], weight_decay=0.1), dict(params=[p for p in params.values() if p.dim() < 2], weight_decay=0.0)]
opt = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95))
values = {name: p.detach().clone() for name, p in params.items()}
for _ in range(7):
    for p in params.values():
        p.grad = torch.ones_like(p)
    opt.step()
for name, p in params.items():
    p.data.copy_(values[name])
    opt.state[p]["exp_avg"].copy_(values[name] + 0.5)
    opt.state[p]["exp_avg_sq"].copy_(values[name] + 0.25)
model = OrderedDict(("_orig_mod." + name, p.detach()) for name, p in params.items())
model["_orig_mod.lm_head.weight"] = model["_orig_mod.transformer.wte.weight"]
config = dict(out_dir="out", dataset="shakespeare_char", batch_size=12, learning_rate=6e-4, weight_decay=0.1, beta1=0.9, beta2=0.95, decay_lr=True, device="cuda")
torch.save(dict(model=model, optimizer=opt.state_dict(), iter_num=2000, best_val_loss=torch.tensor(1.4697), config=config,
                model_args=dict(n_layer=L, n_head=2, n_embd=C, block_size=T, bias=True, vocab_size=V, dropout=0.2)),
           os.path.join(os.path.dirname(os.path.abspath(__file__)), "ckpt.pt"))
