"""Groups of trajectories that may be alike in any way: litters, centres, plates, replicates of one sample.

Only groups are independent of one another. Labels become numbers once, at the entry; everything that squares what
trajectories contribute sums it within groups first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from retrace_sde.io.arrays import Indices
from retrace_sde.io.deferred import pd


def as_labels(groups: Any) -> Any:
    """Labels as an array (n,), whatever holds them; those that are masked are missing (None)."""
    if isinstance(groups, np.ma.MaskedArray):
        hidden, groups = np.ma.getmaskarray(groups), np.ma.getdata(groups).astype(object)
        groups[hidden] = None
    if hasattr(groups, "dtype"):
        return np.asarray(groups)
    return pd.Series(list(groups), dtype=object).to_numpy()


def group_codes(groups: Any, n: int) -> Indices | None:
    """Labels, any that can be hashed, one for each trajectory, as numbers; None where no two trajectories share one."""
    several = not isinstance(groups, str) and hasattr(groups, "__iter__")
    labels = as_labels(groups) if several else None
    if labels is None or labels.shape != (n,):
        got = repr(groups) if labels is None else f"an array of shape {labels.shape}"
        raise ValueError(
            f"groups must hold one label for each of the {n} trajectories; got {got:.80}."
        )
    try:
        codes, found = pd.factorize(labels)
    except TypeError:
        raise ValueError(
            "labels of groups must be hashable, as numbers, texts and tuples are."
        ) from None
    if (codes < 0).any():
        first, count = int(np.argmin(codes >= 0)), int((codes < 0).sum())
        raise ValueError(
            f"{count} of the {n} labels of groups are missing, the first that of trajectory {first}: a trajectory that is alike to "
            "no other is a group of its own, so give it a label of its own."
        )
    return None if len(found) == n else codes.astype(np.intp)


def renumbered(groups: Any) -> Indices:
    """The same groups, numbered as they first appear."""
    return pd.factorize(groups)[0].astype(np.intp)
