"""The paper's model, AdamW and averages in PyTorch: the worker of `benchmarks.torch_comparison`.

A script for an interpreter with torch and numpy, without anytime_jax. It reads one JSON object
per line and answers each with one:

    {"do": "start", "arrays": FILE.npz, ...}  weights by ai2-olmo's names, and "tokens"
    {"do": "steps", "count": n}               runs n updates; the answer has seconds and losses

Shape suffixes: B batch, L length, T = L + 1 tokens of a window, D width, H heads, K head size.
"""

import json
import platform
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional


def rotate(x_BxHxLxK, cos_LxK, sin_LxK):
    """Rotates queries or keys by their position (half rotation); returns float32."""
    x1, x2 = x_BxHxLxK.float().chunk(2, dim=-1)
    return x_BxHxLxK * cos_LxK + torch.cat([-x2, x1], dim=-1) * sin_LxK


class Block(nn.Module):
    """Transformer block: LayerNorm before each sublayer, norms of queries and keys, GELU."""

    def __init__(self, settings):
        super().__init__()
        width, inner = settings["width"], settings["mlp_width"]
        self.heads = settings["heads"]
        for name in ("attn_norm", "q_norm", "k_norm", "ff_norm"):
            setattr(self, name, nn.LayerNorm(width, settings["norm_epsilon"], bias=False))
        self.att_proj = nn.Linear(width, 3 * width, bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.ff_proj = nn.Linear(width, inner, bias=False)
        self.ff_out = nn.Linear(inner, width, bias=False)

    def forward(self, x_BxLxD, cos_LxK, sin_LxK):
        """Returns the residual stream after the block."""
        B, L, D = x_BxLxD.shape
        q, k, v = self.att_proj(self.attn_norm(x_BxLxD)).chunk(3, dim=-1)
        q, k, v = (
            y.view(B, L, self.heads, -1).transpose(1, 2)
            for y in (self.q_norm(q), self.k_norm(k), v)
        )
        q, k = (rotate(y, cos_LxK, sin_LxK).to(v.dtype) for y in (q, k))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BxLxD = x_BxLxD + self.attn_out(out.transpose(1, 2).reshape(B, L, D))
        return x_BxLxD + self.ff_out(functional.gelu(self.ff_proj(self.ff_norm(x_BxLxD))))


class Decoder(nn.Module):
    """Decoder: embedding, blocks, final norm, head."""

    def __init__(self, settings):
        super().__init__()
        rows, width = settings["embedding_rows"], settings["width"]
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(rows, width),
                "blocks": nn.ModuleList(Block(settings) for _ in range(settings["layers"])),
                "ln_f": nn.LayerNorm(width, settings["norm_epsilon"], bias=False),
                "ff_out": nn.Linear(width, rows, bias=False),
            }
        )
        size = width // settings["heads"]
        frequencies = settings["rope_theta"] ** (-torch.arange(0, size, 2).float() / size)
        angles = torch.arange(settings["length"]).float()[:, None] * frequencies
        angles = torch.cat([angles, angles], dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens_BxT):
        """Returns the mean loss of a batch of windows."""
        x_BxLxD = self.transformer["wte"](tokens_BxT[:, :-1])
        for block in self.transformer["blocks"]:
            x_BxLxD = block(x_BxLxD, self.cos, self.sin)
        logits = self.transformer["ff_out"](self.transformer["ln_f"](x_BxLxD))
        return functional.cross_entropy(logits.float().flatten(0, 1), tokens_BxT[:, 1:].flatten())


class Run:
    """A training run: weights, AdamW, averages and the number of updates."""

    def __init__(self, settings):
        self.settings, self.updates = settings, 0
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        arrays = np.load(settings["arrays"])
        self.model = Decoder(settings)
        self.model.load_state_dict(
            {name: torch.from_numpy(arrays[name]) for name in arrays.files if name != "tokens"}
        )
        self.model.to(self.device)
        self.weights = list(self.model.parameters())
        self.batches = torch.from_numpy(arrays["tokens"]).long().to(self.device)
        self.optimizer = torch.optim.AdamW(
            self.weights,
            lr=0.0,
            betas=(settings["b1"], settings["b2"]),
            eps=settings["epsilon"],
            weight_decay=0.0,
            fused=True,
        )
        self.averages = [[x.detach().clone() for x in self.weights] for _ in settings["averages"]]
        self.loss, self.mode = self.model, "eager"
        if settings["compiled"]:
            self.compile()

    def compile(self):
        """Compiles the loss if torch.compile works on this machine."""
        compiled = torch.compile(self.model)
        part = self.batches[0][: len(self.batches[0]) // self.settings["microbatches"]]
        try:
            with self.precision():
                compiled(part).backward()
        # torch.compile needs a C++ compiler, and may fail for other reasons.
        except Exception as error:
            self.mode = f"eager: {type(error).__name__}"
        else:
            self.loss, self.mode = compiled, "compiled"
        self.optimizer.zero_grad()

    def precision(self):
        """Returns the context for bfloat16 products, if the settings require them."""
        enabled = self.settings["dtype"] == "bfloat16"
        return torch.autocast(self.device, dtype=torch.bfloat16, enabled=enabled)

    def update(self):
        """Runs one update and returns its loss, on the device."""
        settings, parts = self.settings, self.settings["microbatches"]
        total = 0.0
        for part in self.batches[self.updates % len(self.batches)].chunk(parts):
            with self.precision():
                loss = self.loss(part) / parts
            loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(self.weights, settings["clip_norm"])
        rates = settings["rates"]
        self.optimizer.param_groups[0]["lr"] = rates[min(self.updates, len(rates) - 1)]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates += 1
        with torch.no_grad():
            for f, average in zip(settings["averages"], self.averages, strict=True):
                torch._foreach_lerp_(average, self.weights, 1 - 2 ** (-f / self.updates))
        return total

    def steps(self, count):
        """Runs updates; returns their total seconds and the loss of each."""
        self.synchronize()
        start = time.perf_counter()
        losses = [self.update() for _ in range(count)]
        self.synchronize()
        seconds = time.perf_counter() - start
        peak = torch.cuda.max_memory_allocated() if self.device == "cuda" else None
        losses = [float(loss) for loss in losses]
        return {"seconds": seconds, "losses": losses, "peak_bytes": peak}

    def synchronize(self):
        """Waits for all work on the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def main():
    run = None
    for line in sys.stdin:
        message = json.loads(line)
        if message["do"] == "start":
            run = Run(message)
            answer = {
                "torch": torch.__version__,
                "python": platform.python_version(),
                "threads": torch.get_num_threads(),
                "device": run.device,
                "mode": run.mode,
            }
        else:
            answer = run.steps(message["count"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
