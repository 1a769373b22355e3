"""Train AI2's own OLMo code under PyTorch's bfloat16 autocast, and write its losses.

    olmo-env/bin/python tests/oracles/ai2_autocast.py FOLDER

FOLDER has `config.yaml`, the package's own, and `arrays.npz`: "param/NAME" (initial float32 weights
by the package's names), "tokens" (int32, a batch of windows for each update), "learning_rates" (one
for each update) and "b2". AdamW has b1 0.9, epsilon 1e-8 and no weight decay; the gradient is
clipped at norm 1. Writes `losses.npy` there. See README.md for the environment.
"""

import math
import pathlib
import sys

import numpy as np
import torch
from ai2_olmo import forward
from olmo.config import ModelConfig
from olmo.model import OLMo


def main(folder: pathlib.Path) -> None:
    arrays = np.load(folder / "arrays.npz")
    model = OLMo(ModelConfig.load(folder / "config.yaml", key="model"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(arrays[f"param/{name}"]))
    parameters = list(model.parameters())
    betas = (0.9, float(arrays["b2"]))
    optimizer = torch.optim.AdamW(parameters, betas=betas, eps=1e-8, weight_decay=0.0)
    losses = []
    for tokens, rate in zip(arrays["tokens"], arrays["learning_rates"], strict=True):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            _, loss = forward(model, tokens)
        loss.backward()
        norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in parameters))
        for parameter in parameters:
            parameter.grad.mul_(min(1.0, 1.0 / norm))
        for group in optimizer.param_groups:
            group["lr"] = float(rate)
        optimizer.step()
        losses.append(loss.item())
    np.save(folder / "losses.npy", np.array(losses))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
