"""How coarse PLEDGE's messages may be where all clients have one Hessian and h = 0: the small-gain bound.

A compressor is an error e with |e| <= q |input|, in a loop with a linear system. In the mode of curvature t a round is

    x = z + theta (z - z_old),   c' = (x_old - z)/S,   r = (1 - S t/tau)^tau
    G = (1 - r)/(S t) t x - (1 - (1 - r)/(S t)) (c' - v)                          the walk, with its correction
    input_up = G - u,   u+ = u + input_up + e_up,   v+ = G
    input_down = x - S u+ - (z + theta (z - z_old)),   z+ = that prediction + input_down + e_down

It converges for all such errors if q < 1/max |M(e^iw)|, over the frequencies w and the curvatures, where M leads from
the errors to the inputs, with the best scale between the two, the same for all curvatures. Frequencies and curvatures
are on a grid, so the bound is computed, not proved. Run: python benchmarks/pledge_small_gain.py
"""

from __future__ import annotations

import numpy as np


def system(t: float, S: float, tau: int, theta: float) -> list[np.ndarray]:
    """A, B, C, D of the mode: states z, z_old, u, v, x_old; errors up, down; inputs up, down / S."""
    z, old, u, v, x_old, e_up, e_down = np.eye(7)
    walked = (1 - (1 - S * t / tau) ** tau) / (S * t)
    y = z + theta * (z - old)
    G = walked * t * y - (1 - walked) * ((x_old - z) / S - v)
    up = G - u
    u_new = u + up + e_up
    down = (y - S * u_new - y) / S
    rows = np.array([y + S * (down + e_down), z, u_new, G, y]), np.array([up, down])
    return [part for row in rows for part in (row[:, :5], row[:, 5:])]


def largest_q(S: float, tau: int, theta: float, kappa: float = 100.0) -> float:
    """In units of L = 1."""
    circle = np.exp(1j * np.linspace(0, np.pi, 181))
    M = []
    for t in np.geomspace(1 / kappa, 1, 9):
        A, B, C, D = system(t, S, tau, theta)
        M += [D + C @ np.linalg.solve(w * np.eye(5) - A, B) for w in circle]
    scales = np.geomspace(0.05, 20, 41)
    return 1 / min(float(np.linalg.norm(np.array(M) * [[1, s], [1 / s, 1]], 2, (1, 2)).max()) for s in scales)


if __name__ == "__main__":
    for S, theta in ((1, 0.0), (1, 0.5), (3, 0.0), (3, 0.5), (5, 0.6)):
        bounds = ", ".join(f"kappa = {k:g}: q^2 < {largest_q(S, S, theta, k) ** 2:.3f}" for k in (20, 100, 1000))
        print(f"S L = {S}, tau = {S}, theta = {theta}:  {bounds}")
