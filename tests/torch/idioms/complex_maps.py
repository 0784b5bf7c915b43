"""Maps of complex numbers: what is made like one, written to, and read of real maps."""

import torch

from tests.torch.idioms.models import infer, of_conv


def spectrum(y):
    return torch.fft.fft2(y)


def added_in_place(y, x):
    z = spectrum(y)
    total = torch.zeros_like(z)
    total += z
    return total.abs()


def added_at_places(y, x):
    z = spectrum(y)
    made = torch.zeros_like(z).index_add(1, torch.tensor([1, 0]), z[:, :2])
    return torch.fft.ifft2(made).real


def padded(y, x):
    z = spectrum(y)
    made = z.new_zeros(z.shape[0], 4, 8, 8)
    made[..., : z.shape[-2], : z.shape[-1]] = z
    return torch.fft.ifft2(made).abs()


def scanned(y, x):
    """A recurrence with a complex state, as of state-space models."""
    z = torch.complex(y[:, :2], y[:, 2:])
    state, states = torch.zeros_like(z[..., 0]), []
    for at in range(z.shape[-1]):
        state = state * (0.9j - 0.1) + z[..., at]
        states.append(state.real)
    return torch.stack(states, -1)


def descended(y, x):
    """Three steps of conjugate gradients, as of MoDL for magnetic resonance."""
    b = torch.complex(y[:, 0], y[:, 1])
    mask = torch.arange(b.shape[-1]) % 2 == 0
    found, r = torch.zeros_like(b), b
    p, rho = r, (r.conj() * r).real.sum((1, 2), keepdim=True)
    for _ in range(3):
        ap = torch.fft.ifft2(torch.fft.fft2(p) * mask) + 0.5 * p
        alpha = rho / (p.conj() * ap).real.sum((1, 2), keepdim=True)
        found, r = found + alpha * p, r - alpha * ap
        later = (r.conj() * r).real.sum((1, 2), keepdim=True)
        p, rho = r + (later / rho) * p, later
    return torch.view_as_real(found).permute(0, 3, 1, 2)


def rotated(y, x):
    """Rotary positions, of heads whose axis was moved before."""
    q = y.flatten(2).mT.contiguous().reshape(y.shape[0], -1, 2, 2).transpose(1, 2)
    z = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
    turns = torch.polar(torch.ones(z.shape[2], 1), torch.arange(z.shape[2])[:, None] / 7)
    return torch.view_as_real(z * turns).flatten(3).transpose(1, 2)


def written_by_parts(y, x):
    pairs = y.transpose(1, 3).contiguous().transpose(1, 2)[..., :2]
    z = torch.view_as_complex(pairs * 2)
    z *= 1j
    return z.real + z.imag


MADE = {
    "zeros_like, added": lambda y, x: (torch.zeros_like(z := spectrum(y)) + z).abs(),
    "zeros_like, added in place": added_in_place,
    "zeros_like, index_add": added_at_places,
    "ones_like": lambda y, x: torch.view_as_real(torch.ones_like(z := spectrum(y)) * z),
    "full_like": lambda y, x: (torch.full_like(z := spectrum(y), 1 + 2j) * z).real,
    "where": lambda y, x: torch.where((z := spectrum(y)).real > 0, z, torch.zeros_like(z)).abs(),
    "new_zeros, written to": padded,
    "new_zeros, joined": lambda y, x: torch.cat(((z := spectrum(y)), z.new_zeros(z.shape)), 1).imag,
    "zeros of its shape": lambda y, x: torch.view_as_real(
        torch.zeros((z := spectrum(y)).shape, dtype=z.dtype) + z
    ),
    "a scan": scanned,
    "conjugate gradients": descended,
}
CASES = [
    *(of_conv(f"like a complex map: {name}", f) for name, f in MADE.items()),
    *(
        of_conv(f"like a complex map, without gradients: {name}", f, steps=infer)
        for name, f in MADE.items()
    ),
    of_conv("rotary positions of moved heads", rotated),
    of_conv("rotary positions of moved heads, without gradients", rotated, steps=infer),
    of_conv("complex numbers written to, of a moved map", written_by_parts),
]
