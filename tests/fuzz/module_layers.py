"""Layers of drawn modules: what has parameters, pools, activations, changes of size."""

from __future__ import annotations

import torch

ACTIVATIONS = (
    "ReLU()", "ReLU(inplace=True)", "ReLU6()", "LeakyReLU(0.2)", "LeakyReLU(-0.5)", "PReLU()",
    "ELU(0.7)", "CELU()", "SELU()", "GELU()", "GELU('tanh')", "SiLU()", "SiLU(inplace=True)",
    "Mish()", "Sigmoid()", "Tanh()", "Hardtanh(-0.5, 0.7)", "Hardswish()", "Hardsigmoid()",
    "Softplus()", "Softplus(2, 1)", "LogSigmoid()", "Softsign()", "Tanhshrink()", "Softshrink(0.2)",
    "Hardtanh(0, 1, inplace=True)", "Identity()", "Dropout(0.0)", "Dropout2d(0.0)",
    "Threshold(0.1, 0.1)", "GLU(1)", "Softmax(1)", "Softmax2d()", "LogSoftmax(1)", "Softmin(1)",
    "Flatten(2)", "AlphaDropout(0.0)",
)  # fmt: skip


def activation(d):
    kind = d.stream.choice(ACTIVATIONS)
    x = d.pick_map() if "2d" in kind or "1" in kind else d.pick()
    name = d.layer(f"nn.{kind}")
    inplace = "inplace" in kind and d.stream.chance(0.8)
    out = d.assign(f"{name}({x}.clone())" if inplace else f"{name}({x})")
    d.layers.append((name, d.tensor(x).shape, out))


def functional_activation(d):
    kinds = (
        "F.relu({})", "F.gelu({})", "torch.sigmoid({})", "{}.tanh()", "F.softplus({}, beta=2)",
        "F.leaky_relu({}, 0.1)", "F.hardtanh({})", "F.silu({})", "F.elu({})", "F.dropout({}, 0.0)",
        "F.relu6({})", "torch.relu({})", "F.normalize({}, dim=1)", "F.logsigmoid({})",
        "F.softmax({}, dim=-1)", "F.log_softmax({}, 0)", "F.dropout({}, 0.5, training=False)",
        "F.glu({}, 1)", "F.rrelu({}, 0.2, 0.2)", "F.hardshrink({}, 0.1)",
    )  # fmt: skip
    d.assign(d.stream.choice(kinds).format(d.pick()))


def convolution(d):
    s, x = d.stream, d.pick_map()
    channels, axes = d.tensor(x).shape[1], d.axes
    groups = s.choice((1, 1, 1, 2, channels))
    after = s.choice((2, 3, 4, 6, 8))
    if channels % groups or after % groups:
        groups = 1
    window = s.choice((1, 2, 3, 3, (1, 3, 2)[:axes]))
    options = [f"{channels}, {after}, {window}"]
    if s.chance(0.3):
        options.append(f"stride={s.choice((2, (1, 2, 2)[:axes]))}")
        options.append(f"padding={s.choice((0, 1))}")
    elif s.chance(0.7):
        options.append(f"padding={s.choice((1, 1, 2, repr('same'), repr('valid')))}")
    if s.chance(0.15):
        options.append("dilation=2")
    if groups > 1:
        options.append(f"groups={groups}")
    if s.chance(0.3):
        options.append("bias=False")
    if s.chance(0.15):
        options.append(f"padding_mode={s.choice(('reflect', 'replicate', 'circular'))!r}")
    name = d.layer(f"nn.Conv{axes}d({', '.join(options)})", "conv")
    d.layers.append((name, d.tensor(x).shape, d.assign(f"{name}({x})")))


def transposed_convolution(d):
    s, x = d.stream, d.pick_map()
    channels, after = d.tensor(x).shape[1], s.choice((2, 3, 4))
    stride = s.choice((1, 2))
    options = [f"{channels}, {after}, {s.choice((2, 3))}, stride={stride}"]
    if s.chance(0.4):
        options.append("padding=1")
    if stride > 1 and s.chance(0.4):
        options.append("output_padding=1")
    if s.chance(0.3):
        options.append("bias=False")
    if s.chance(0.1):
        options.append("dilation=2")
    name = d.layer(f"nn.ConvTranspose{d.axes}d({', '.join(options)})", "up")
    given = ""
    if s.chance(0.1):
        given = f", output_size={tuple(n * stride + 1 for n in d.tensor(x).shape[2:])}"
    d.assign(f"{name}({x}{given})")


def normalization(d):
    s, x = d.stream, d.pick_map()
    shape, axes = tuple(d.tensor(x).shape), d.axes
    channels = shape[1]
    kind = s.choice(("batch", "batch", "batch", "group", "instance", "layer", "rms", "local"))
    affine = s.choice(("", ", affine=False"))
    if kind == "batch":
        how = s.choice(("", "", ", momentum=0.3", ", momentum=1.0", ", track_running_stats=False"))
        text = f"nn.BatchNorm{axes}d({channels}{affine}{how}{s.choice(('', ', eps=1e-3'))})"
    elif kind == "group":
        groups = s.choice([n for n in (1, 2, 3, 4, channels) if channels % n == 0])
        text = f"nn.GroupNorm({groups}, {channels}{affine})"
    elif kind == "instance":
        how = s.choice(("", ", affine=True", ", track_running_stats=True"))
        text = f"nn.InstanceNorm{axes}d({channels}{how})"
    elif kind == "local":
        text = f"nn.LocalResponseNorm({s.choice((2, 3))}, alpha=0.1)"
    else:
        over = shape[s.choice((1, 2, -1)) :]
        how = s.choice(("", ", elementwise_affine=False"))
        text = f"nn.{'LayerNorm' if kind == 'layer' else 'RMSNorm'}({over}{how})"
    name = d.layer(text, "norm")
    d.layers.append((name, d.tensor(x).shape, d.assign(f"{name}({x})")))


def pooling(d):
    s, x, axes = d.stream, d.pick_map(2), d.axes
    kind = s.choice(("Max", "Max", "Avg", "AdaptiveAvg", "AdaptiveMax", "LP", "indices"))
    if kind.startswith("Adaptive"):
        d.assign(f"{d.layer(f'nn.{kind}Pool{axes}d({s.choice((1, 2, 3))})')}({x})")
        return
    options = [s.choice(("2", "3", "2, 1", "3, 2"))]
    if kind in ("Max", "Avg", "indices") and s.chance(0.4):
        options.append("padding=1")
    if s.chance(0.3):
        options.append("ceil_mode=True")
    if kind == "Avg" and s.chance(0.3):
        options.append("count_include_pad=False")
    if kind == "Max" and s.chance(0.2):
        options.append("dilation=2")
    if kind == "LP":
        options = ["2", "2"]
        x = d.assign(f"{x}.abs() + 0.1")
    if kind == "indices":
        name = d.layer(f"nn.MaxPool{axes}d({', '.join(options)}, return_indices=True)")
        out, at = d.names.fresh("v"), d.names.fresh("at")
        d.write(f"{out}, {at} = {name}({x})", new=(out,))
        d.ends.append(at)
        return
    name = d.layer(f"nn.{kind}Pool{axes}d({', '.join(options)})", "pool")
    d.assign(f"{name}({x})")


def linear(d):
    s = d.stream
    x = d.pick(lambda x: x.is_floating_point() and x.dim() >= 2 and x.shape[-1] > 0)
    if s.chance(0.4):
        x = d.assign(f"{x}.flatten(1)")
    width = d.tensor(x).shape[-1]
    if width > 400:
        x = d.assign(f"{x}[..., :100]")
        width = 100
    name = d.layer(f"nn.Linear({width}, {s.choice((2, 3, 5))}{s.choice(('', ', bias=False'))})")
    d.layers.append((name, d.tensor(x).shape, d.assign(f"{name}({x})")))


def resize(d):
    s, x = d.stream, d.pick_map()
    modes = ["nearest", "nearest-exact", ("linear", "bilinear", "trilinear")[d.axes - 1]]
    mode = s.choice([*modes, "bicubic"] if d.axes == 2 else modes)
    size = s.choice((
        f"scale_factor={s.choice((2, 2, 0.5, 1.7))}",
        f"size={tuple(s.choice((2, 5, 9)) for _ in range(d.axes))}",
    ))  # fmt: skip
    how = f", align_corners={s.choice((True, False))}" if "linear" in mode else ""
    if s.chance(0.5):
        d.assign(f"F.interpolate({x}, {size}, mode={mode!r}{how})")
    else:
        d.assign(f"{d.layer(f'nn.Upsample({size}, mode={mode!r}{how})')}({x})")


def padding(d):
    s, x, axes = d.stream, d.pick_map(2), d.axes
    mode = s.choice(("constant", "constant", "constant", "reflect", "replicate", "circular"))
    amounts = (0, 1, 2, -1) if mode == "constant" else (0, 1)
    pads = [s.choice(amounts) for _ in range(2 * axes)]
    value = f", value={s.choice((0, 0.5, -1, True))}" if mode == "constant" else ""
    d.assign(f"F.pad({x}, {pads}, mode={mode!r}{value})")


def shuffle(d):
    s, x = d.stream, d.pick_map(2)
    kinds = [f"nn.ChannelShuffle(2)({x})"]
    if d.axes == 2:
        kinds += [f"F.pixel_shuffle({x}, 2)", f"F.pixel_unshuffle({x}, 2)"] * 2
    d.assign(s.choice(kinds))


def joined(d):
    s, x = d.stream, d.pick_map()
    shape = d.tensor(x).shape
    others = [
        name for name in d.values
        if d.tensor(name).dim() == len(shape) and d.tensor(name).is_floating_point()
        and d.tensor(name).shape[2:] == shape[2:] and d.tensor(name).shape[0] == shape[0]
    ]  # fmt: skip
    chosen = [x, *(s.choice(others) for _ in range(s.choice((1, 1, 2))))]
    d.assign(f"torch.cat([{', '.join(chosen)}], {s.choice((1, 1, 1, -d.axes - 1))})")


def parted(d):
    s, x = d.stream, d.pick_map()
    channels = d.tensor(x).shape[1]
    if channels < 2:
        d.assign(f"torch.stack([{x}, {d.pick_like(x)}], 1)")
        return
    a, b = d.names.fresh("v"), d.names.fresh("v")
    how = s.choice((
        f"{x}.chunk(2, 1)", f"{x}.split([1, {channels - 1}], dim=1)",
        f"torch.tensor_split({x}, 2, 1)", f"{x}.chunk(2, dim=-1)", f"{x}.unbind(1)[:2]",
    ))  # fmt: skip
    d.write(f"{a}, {b} = {how}", new=(a, b))


def again(d):
    """A layer that was used before, on another value: shared weights."""
    if not d.layers:
        raise IndexError
    name, shape, out = d.stream.choice(d.layers)
    fits = [n for n in [*d.values, out] if d.tensor(n).shape[1:] == shape[1:]]
    d.assign(f"{name}({d.stream.choice(fits)})")


def attention(d):
    s, x = d.stream, d.pick_map()
    flat = d.assign(f"{x}.flatten(2).transpose(1, 2)")
    width = d.tensor(flat).shape[-1]
    kind = s.choice(("scaled", "products", "module", "einsum"))
    if kind == "module":
        name = d.layer(f"nn.MultiheadAttention({width}, 1, batch_first=True)")
        d.assign(f"{name}({flat}, {flat}, {flat}, need_weights={s.choice((True, False))})[0]")
    elif kind == "scaled":
        d.assign(
            f"F.scaled_dot_product_attention({flat}, {flat}.tanh(), {flat}, "
            f"is_causal={s.choice((True, False))})"
        )
    elif kind == "einsum":
        d.assign(f"torch.einsum('bic,bjc->bij', {flat}, {flat}) * 0.1")
    else:
        scores = d.assign(f"({flat} @ {flat}.mT / {max(width, 1)}).softmax(-1)")
        d.assign(f"torch.bmm({scores}, {flat})")


def recurrent(d):
    s, x = d.stream, d.pick_map()
    flat = d.assign(f"{x}.flatten(2).transpose(1, 2)[:, :4]")
    kind = s.choice(("GRU", "LSTM", "RNN"))
    width = d.tensor(flat).shape[-1]
    name = d.layer(f"nn.{kind}({width}, 3, batch_first=True)")
    d.assign(f"{name}({flat})[0]")


def gate(d):
    """Squeeze and excitation: an image's means scale its channels."""
    x = d.pick_map()
    channels = d.tensor(x).shape[1]
    name = d.layer(
        f"nn.Sequential(nn.AdaptiveAvgPool{d.axes}d(1), nn.Conv{d.axes}d({channels}, 2, 1), "
        f"nn.ReLU(), nn.Conv{d.axes}d(2, {channels}, 1), nn.Sigmoid())", "gate"
    )  # fmt: skip
    d.assign(f"{x} * {name}({x})")


def embedding(d):
    at = d.pick(lambda x: x.dtype == torch.int64)
    name = d.layer(f"nn.Embedding(5, {d.stream.choice((2, 3))})")
    d.assign(f"{name}({at} % 5)")


LAYERS = {
    convolution: 10, normalization: 7, activation: 7, functional_activation: 3, pooling: 3,
    transposed_convolution: 2, linear: 2, resize: 2, padding: 2, shuffle: 1, joined: 3, parted: 2,
    again: 2, attention: 3, recurrent: 0.3, gate: 1, embedding: 3,
}  # fmt: skip
