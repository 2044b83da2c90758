"""
Measurement noise
=================

Noise as large as a step makes neighbours look far apart, and a drift fitted to it is far too strong. The state-space likelihood integrates
the states out.
"""

import matplotlib.pyplot as plt
import numpy as np

import retrace_sde as rt

sde = rt.LinearSDE(-np.eye(3) + 0.4 * np.eye(3, k=1), 0.3 * np.eye(3))
X = sde.simulate(100, 25, 0.1, x0=2.0, random_state=1)
noisy = rt.simulate.add_noise(X, 0.3, random_state=2)
lost, truth = rt.simulate.shuffle(noisy, random_state=3)

ignored = rt.ReTrace(dt=0.1, random_state=0).fit(lost)
asked = rt.ReTrace(dt=0.1, observation_noise="auto", random_state=0).fit(lost)
for name, fit in (("ignored", ignored), ("modelled", asked)):
    right = rt.metrics.order_accuracy(truth, fit.order_)
    print(
        f"noise {name}: positions right {right:.0%}, mean H_ii {np.diag(fit.diffusion_).mean():.2f} (truly 0.30)"
    )
print("noise found:", np.sqrt(np.diag(asked.observation_noise_)).round(2), "(truly 0.3)")

# %%
# The residuals where noise is ignored, and the smoothed states where it is modelled:

print(ignored.residuals_)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
rt.plots.autocorrelation(ignored.residuals_, ax=left)
left.set_title("Noise ignored: negative autocorrelation")
in_time = lost[:, asked.order_]
right.plot(asked.times_, in_time[0, :, 0], "o", label="measured")
right.plot(asked.times_, asked.states_[0, :, 0], label="smoothed")
right.plot(asked.times_, X[0, :, 0], ":", color="black", label="truth")
right.set(title="One trajectory", xlabel="time")
right.legend(frameon=False)
figure.tight_layout()
