"""Orders of tumour cohorts recovered from scratch, and growth parameters with the true order.

    python studies/tumour_orders.py --n 5000 --seeds 900:902

For each arm and noise: position accuracy and Kendall's τ of independent orders, whether the direction found is
the true one, and the accuracy of one shared order. Then the relative errors of the parameters, true order,
subjects alike and with random intercepts. CPU seconds, one thread.
"""

from __future__ import annotations

import argparse
from time import process_time

import numpy as np

import retrace_sde as rt
from retrace_sde.fit.subjects import fit_subjects, subject_grams
from retrace_sde.metrics import kendall_tau, order_accuracy
from retrace_sde.panel.blocks import Data, one_blas_thread
from retrace_sde.process.drift import TumourGrowth
from retrace_sde.process.tumour import ARMS, POPULATION
from retrace_sde.reproduce.cases import shuffled_cohort
from retrace_sde.search.models.euler import EulerModel


def orders(n: int, seed: int, sigma: float) -> None:
    for arm in ARMS:
        data = shuffled_cohort(n, arm, sigma, seed)
        begin = process_time()
        model = rt.ReTrace(
            permutation="independent",
            drift=TumourGrowth(),
            estimator="mle",
            random_state=seed,
            n_jobs=1,
        ).fit(data.panel)
        seconds = process_time() - begin
        moved = np.random.default_rng(seed).permutation(61)
        shared = rt.ReTrace(drift=TumourGrowth(), n_jobs=1).fit(data.cohort.shuffled(moved))
        tau = kendall_tau(data.truth, model.order_)
        print(
            f"seed {seed} σ {sigma:<5g} {arm:<13} accuracy {order_accuracy(data.truth, model.order_):.4f} τ {tau:.4f} "
            f"direction {'right' if tau > 0 else 'WRONG'}{'' if model.direction_.identified else ', not called'}; "
            f"shared {order_accuracy(np.argsort(moved), shared.order_):.3f}; {seconds:.0f} s",
            flush=True,
        )


def parameters(n: int, seed: int, sigma: float) -> None:
    panel = shuffled_cohort(n, "observational", sigma, seed).cohort.panel
    problem = EulerModel(Data(panel.values, panel.covariates, 1), 0.25, TumourGrowth())
    grams = subject_grams(problem.data, np.arange(61), problem.dt, problem.drift)
    rho, kill = POPULATION["rho"], POPULATION["alpha_r"] + POPULATION["beta_r"]
    truth = np.array([rho * np.log(POPULATION["capacity"]), -rho, -POPULATION["beta_c"], -kill])
    for name, columns in (("alike", ()), ("random intercepts", (0,))):
        found = fit_subjects(grams, n * 60.0, 4, columns=columns).coefficients[0]
        errors = ", ".join(
            f"{k} {e:+.4f}"
            for k, e in zip(("a", "ρ", "β_c", "α_r+β_r"), found / truth - 1, strict=True)
        )
        print(
            f"seed {seed} σ {sigma:<5g} true order, subjects {name}: relative errors {errors}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=5000)
    parser.add_argument("--seeds", default="900:902")
    chosen = parser.parse_args()
    first, last = map(int, chosen.seeds.split(":"))
    with one_blas_thread():
        for seed in range(first, last):
            for sigma in (0.015, 0.05):
                parameters(chosen.n, seed, sigma)
                orders(chosen.n, seed, sigma)
