"""Conditions for train.py that a test machine's large card does not have by itself; Python runs this at its start.

CAP_GIB=11.47    PyTorch may take that much, as on a 12 GB card.
EMPTY_AT_SAVE=1  the first checkpoint is followed by empty_cache(), as many scripts do it, and by a wait until hog.py has
                 taken the memory: the next step then fails in the middle of training.
"""

import os
import sys

training = "train.py" in sys.orig_argv and "torch.distributed.run" not in sys.orig_argv

if training and os.environ.get("CAP_GIB"):
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(float(os.environ["CAP_GIB"]) * 2**30 / total, 0)

if training and os.environ.get("EMPTY_AT_SAVE"):
    import time

    import torch

    save = torch.save

    def saving(obj, path, *args, **kwargs):
        save(obj, path, *args, **kwargs)
        if os.path.exists("hog.started"):
            return
        torch.cuda.empty_cache()
        open("hog.go", "w").close()
        for _ in range(200):
            if os.path.exists("hog.started"):
                break
            time.sleep(0.1)

    torch.save = saving
