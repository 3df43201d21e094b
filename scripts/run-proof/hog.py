"""Another process on the card: once the file hog.go appears it takes all but LEAVE_GIB, until hog.stop appears."""

import os
import time

import torch

leave = float(os.environ["LEAVE_GIB"]) * 2**30
torch.zeros(1, device="cuda")
while not os.path.exists("hog.go"):
    time.sleep(0.05)
free, total = torch.cuda.mem_get_info()
taken = torch.empty(int(free - leave), dtype=torch.uint8, device="cuda")
open("hog.started", "w").close()
print("took %.2f GiB" % (taken.numel() / 2**30), flush=True)
while not os.path.exists("hog.stop"):
    time.sleep(0.1)
