"""The paper's decoder in NumPy float64, written from its description, for any length and base."""

import numpy as np
from scipy.special import erf, logsumexp


def mean_loss(model, params, tokens):
    """Returns the mean loss of windows, which have one token more than losses."""
    blocks = params["blocks"]
    x = np.float64(params["embedding"])[tokens[:, :-1]]
    batch, length, width = x.shape
    heads, half = model.heads, width // model.heads // 2
    angles = np.outer(np.arange(length), model.rope_theta ** (-np.arange(half) / half))
    turn = np.exp(1j * angles)[:, None]
    future = np.triu(np.full((length, length), -np.inf), 1)

    def norm(x, scale):
        centered = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centered**2).mean(-1, keepdims=True) + model.norm_epsilon)
        return centered / deviation * np.float64(scale)

    def rotate(x):
        x = x.reshape(batch, length, heads, 2 * half)
        x = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([x.real, x.imag], axis=-1)

    for i in range(model.layers):
        weights = {name: y[i] for name, y in blocks.items() if not isinstance(y, dict)}
        scales = {name: y["scale"][i] for name, y in blocks.items() if isinstance(y, dict)}
        y = norm(x, scales["attn_norm"])
        q, k, v = (y @ np.float64(weights["qkv"][:, j]) for j in range(3))
        q, k = rotate(norm(q, scales["q_norm"])), rotate(norm(k, scales["k_norm"]))
        scores = np.einsum("blhk,bmhk->bhlm", q, k) / np.sqrt(2 * half) + future
        shares = np.exp(scores - logsumexp(scores, axis=-1, keepdims=True))
        mixed = np.einsum("bhlm,bmhk->blhk", shares, v.reshape(q.shape))
        x = x + mixed.reshape(x.shape) @ np.float64(weights["attn_out"])
        h = norm(x, scales["mlp_norm"]) @ np.float64(weights["mlp_in"][:, 0])
        x = x + h * (1 + erf(h / np.sqrt(2))) / 2 @ np.float64(weights["mlp_out"])
    logits = norm(x, params["final_norm"]["scale"]) @ np.float64(params["head"])
    chosen = np.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    return (logsumexp(logits, axis=-1) - chosen).mean()
