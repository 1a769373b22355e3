"""The paper's model, AdamW and five averages in PyTorch: what `benchmarks.peers` compares with.

A script for an interpreter that has torch and numpy, and nothing of ours. It reads one JSON object
a line and answers each with one:

    {"do": "start", "arrays": FILE.npz, ...}  weights by ai2-olmo's names, and "tokens"
    {"do": "steps", "count": n}               makes n updates; answers seconds and losses

Legend of shape suffixes: B batch, L length, T = L + 1 tokens of a window, D width, H heads, K head
size.
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
    """Returns queries or keys turned by their position (half rotation), float32."""
    x1, x2 = x_BxHxLxK.float().chunk(2, dim=-1)
    return x_BxHxLxK * cos_LxK + torch.cat([-x2, x1], dim=-1) * sin_LxK


class Block(nn.Module):
    """LayerNorm before each sublayer, norms of queries and keys, GELU."""

    def __init__(self, given):
        """Makes the layers, under ai2-olmo's names."""
        super().__init__()
        width, inner = given["width"], given["mlp_width"]
        self.heads = given["heads"]
        for name in ("attn_norm", "q_norm", "k_norm", "ff_norm"):
            setattr(self, name, nn.LayerNorm(width, given["norm_epsilon"], bias=False))
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
    """Embedding, blocks, final norm, head."""

    def __init__(self, given):
        """Makes the layers, under ai2-olmo's names."""
        super().__init__()
        rows, width = given["embedding_rows"], given["width"]
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(rows, width),
                "blocks": nn.ModuleList(Block(given) for _ in range(given["layers"])),
                "ln_f": nn.LayerNorm(width, given["norm_epsilon"], bias=False),
                "ff_out": nn.Linear(width, rows, bias=False),
            }
        )
        size = width // given["heads"]
        turns = given["rope_theta"] ** (-torch.arange(0, size, 2).float() / size)
        angles = torch.arange(given["length"]).float()[:, None] * turns
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
    """A training run: weights, AdamW, averages, and the updates done."""

    def __init__(self, given):
        """Loads the weights and tokens and compiles the loss where that is asked for and works."""
        self.given, self.done = given, 0
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        arrays = np.load(given["arrays"])
        self.model = Decoder(given)
        self.model.load_state_dict(
            {name: torch.from_numpy(arrays[name]) for name in arrays.files if name != "tokens"}
        )
        self.model.to(self.device)
        self.weights = list(self.model.parameters())
        self.batches = torch.from_numpy(arrays["tokens"]).long().to(self.device)
        self.optimizer = torch.optim.AdamW(
            self.weights,
            lr=0.0,
            betas=(given["b1"], given["b2"]),
            eps=given["epsilon"],
            weight_decay=0.0,
            fused=True,
        )
        self.averages = [[x.detach().clone() for x in self.weights] for _ in given["averages"]]
        self.loss, self.how = self.model, "eager"
        if given["compiled"]:
            self.compile()

    def compile(self):
        """Exchanges the loss for a compiled one, if the compiler can do it here."""
        compiled = torch.compile(self.model)
        part = self.batches[0][: len(self.batches[0]) // self.given["microbatches"]]
        try:
            with self.precision():
                compiled(part).backward()
        except Exception as error:  # the compiler wants a C++ compiler, and more
            self.how = f"eager: {type(error).__name__}"
        else:
            self.loss, self.how = compiled, "compiled"
        self.optimizer.zero_grad()

    def precision(self):
        """Returns the context in which products have operands of 16 bits, if they are to."""
        low = self.given["dtype"] == "bfloat16"
        return torch.autocast(self.device, dtype=torch.bfloat16, enabled=low)

    def update(self):
        """Makes one update; returns its loss, still on the device."""
        given, parts = self.given, self.given["microbatches"]
        total = 0.0
        for part in self.batches[self.done % len(self.batches)].chunk(parts):
            with self.precision():
                loss = self.loss(part) / parts
            loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(self.weights, given["clip_norm"])
        rates = given["rates"]
        self.optimizer.param_groups[0]["lr"] = rates[min(self.done, len(rates) - 1)]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1
        with torch.no_grad():
            for f, average in zip(given["averages"], self.averages, strict=True):
                torch._foreach_lerp_(average, self.weights, 1 - 2 ** (-f / self.done))
        return total

    def steps(self, count):
        """Makes updates; returns the seconds of them all and the loss of each."""
        self.wait()
        began = time.perf_counter()
        losses = [self.update() for _ in range(count)]
        self.wait()
        seconds = time.perf_counter() - began
        peak = torch.cuda.max_memory_allocated() if self.device == "cuda" else None
        losses = [float(loss) for loss in losses]
        return {"seconds": seconds, "losses": losses, "peak_bytes": peak}

    def wait(self):
        """Waits for what the device still has to do."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def main():
    """Answers line by line until there are no more."""
    run = None
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "start":
            run = Run(asked)
            answer = {
                "torch": torch.__version__,
                "python": platform.python_version(),
                "threads": torch.get_num_threads(),
                "device": run.device,
                "how": run.how,
            }
        else:
            answer = run.steps(asked["count"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
