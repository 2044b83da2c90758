"""Draws docs/demo/order.gif: slices of a fit on their way from where they were stored to where they were.

    python docs/animate.py

Colours are the true times, which the fit did not see.
"""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter

import retrace_sde as rt

matplotlib.use("agg")
import matplotlib.pyplot as plt

SHOWN, STILL, MOVING = 9, 10, 26
"""Trajectories drawn; frames at each end; frames between."""


def panel():
    """A spiral to rest in three variables, its slices shuffled, and the fit that puts them back."""
    sde = rt.LinearSDE([[-0.5, 3.0, 0.0], [-3.0, -0.5, 0.0], [0.5, 0.0, -1.0]], 0.06 * np.eye(3))
    start = rt.Gaussian(np.array([2.0, 0.0, 1.0]), 0.08 * np.eye(3))
    X = sde.simulate(40, 36, 0.08, x0=start, scheme="exact", random_state=1)
    lost, truth = rt.simulate.shuffle(X, random_state=2)
    return lost, truth, rt.ReTrace(dt=0.08, random_state=0).fit(lost)


def draw(path):
    """Writes the animation of one fit."""
    lost, truth, model = panel()
    T = lost.shape[1]
    stored, found = np.arange(T), np.argsort(model.order_)
    times = np.argsort(truth)
    figure, ax = plt.subplots(figsize=(7.2, 3.0), dpi=90)
    dots = [
        ax.scatter(stored, x, c=times, cmap="viridis", s=14, linewidths=0)
        for x in lost[:SHOWN, :, 0]
    ]
    lines = [
        ax.plot(np.arange(T), x[model.order_], color="0.6", linewidth=0.8, zorder=0, alpha=0)[0]
        for x in lost[:SHOWN, :, 0]
    ]
    title = ax.set_title("as stored", loc="left", fontsize=11)
    ax.set(xlim=(-1, T), xticks=[], yticks=[], xlabel="slice")
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    figure.tight_layout()

    def frame(k):
        share = np.clip((k - STILL) / MOVING, 0, 1)
        eased = share**2 * (3 - 2 * share)
        place = stored + eased * (found - stored)
        for points, x in zip(dots, lost[:SHOWN, :, 0], strict=True):
            points.set_offsets(np.column_stack([place, x]))
        for line in lines:
            line.set_alpha(np.clip(6 * share - 5, 0, 1))
        title.set_text("as stored" if share == 0 else "in time" if share == 1 else "moving …")
        return [*dots, *lines, title]

    frames = 2 * STILL + MOVING + STILL
    FuncAnimation(figure, frame, frames=frames).save(path, writer=PillowWriter(fps=14))
    print(f"{path}: positions right {rt.metrics.order_accuracy(truth, model.order_):.0%}")


if __name__ == "__main__":
    draw(Path(__file__).parent / "demo" / "order.gif")
