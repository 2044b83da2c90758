"""The data as the package sees them: values (n, T, d) with their names."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import ArrayLike

from retrace_sde.io.arrays import Array, Indices, taken
from retrace_sde.io.formats import frame_of_xarray, xarray_of_panel
from retrace_sde.io.lazy.array import as_lazy
from retrace_sde.io.lazy.view import ArrayView
from retrace_sde.io.tables import Label, Names, lay_out
from retrace_sde.panel.blocks import unmasked
from retrace_sde.panel.clock import same_for_all
from retrace_sde.panel.groups import as_labels
from retrace_sde.panel.knowledge import bounded_time_error
from retrace_sde.panel.parameters import check, checked
from retrace_sde.panel.uninformative import LeftOut


def _few(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names[:4])) + (", …" if len(names) > 4 else "")


class Numbers(Sequence[str]):
    """The names "0", "1", … of n trajectories, none of which is kept: there may be more of them than memory."""

    def __init__(self, n: int) -> None:
        self._range = range(n)

    def __len__(self) -> int:
        return len(self._range)

    def __iter__(self) -> Iterator[str]:
        return map(str, self._range)

    def __getitem__(self, at: Any) -> Any:
        found = self._range[at]
        return [str(j) for j in found] if isinstance(found, range) else str(found)


PER_VISIT = (
    "coefficients are per visit, for no step (dt) was given: neighbours are one unit of time apart"
)
"""The unit of coefficients where nothing is known of time."""


@dataclass(frozen=True, eq=False)
class Panel:
    """n trajectories of T observations of d variables, in an order along T that need not be known.

    Made by its constructors `from_array`, `from_frame`, … rather than by hand. Trajectories of different
    length are padded to T.

    Attributes
    ----------
    values : array (n, T, d)
        What was observed; NaN where missing.
    names, ids : tuple of str
        Names of the variables and of the trajectories.
    covariates : array (n, T, k) or None
        They travel with their observation.
    covariate_names : tuple of str
        Their names.
    dt : float or None
        Time between neighbouring observations, if known.
    lengths : array (n,) or None
        How many observations each trajectory has.
    slices : tuple or None
        Labels of the slices of a table; None: each trajectory has its own order.
    times : array (T,) or (n, T) or None
        Times that are known, NaN elsewhere.
    time_error : float or None
        Their standard error.
    rows : array (n, T) or None
        Row of each observation in the table, −1 for none.
    notes : tuple of str
        On what was left out.
    left_out : tuple of LeftOut
        Variables without dynamics of their own that a fit left out.
    groups : array (n,) or None
        Labels of groups (litters, centres): only trajectories of different groups are taken for independent.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> panel = rt.Panel.from_array(np.zeros((5, 8, 2)), names=["heart", "pressure"], dt=0.5)
    >>> panel.values.shape, panel.names, panel.trajectory(1), panel.observation(0, 3)
    ((5, 8, 2), ('heart', 'pressure'), 'trajectory 1', 'slice 3')
    >>> panel.without(()).values.shape
    (5, 8, 2)
    """

    values: Any
    names: tuple[str, ...]
    ids: tuple[Label, ...]
    covariates: Any | None = None
    covariate_names: tuple[str, ...] = ()
    dt: float | None = None
    lengths: Indices | None = None
    slices: tuple[Label, ...] | None = None
    times: Array | None = None
    time_error: float | None = None
    rows: Indices | None = None
    notes: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    groups: Any | None = None

    def __post_init__(self) -> None:
        check("Panel", {"dt": self.dt, "time_error": self.time_error})

    def __repr__(self) -> str:
        n, T, d = (*np.shape(self.values), 0, 0, 0)[:3]
        inputs = f", inputs {_few(self.covariate_names)}" if self.covariate_names else ""
        order = "" if self.slices is None else f", slices {_few(self.slices)}"
        return f"Panel({n} trajectories × {T} observations × {d} variables: {_few(self.names)}{order}{inputs})"

    def _repr_html_(self) -> str:
        """The panel in a line; every name is escaped."""
        return f"<code>{html.escape(repr(self))}</code>"

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the values: trajectories, observations, variables."""
        return tuple(self.values.shape)

    def __getitem__(self, chosen: Any) -> Panel:
        """Some of the trajectories, by a slice, a mask or their numbers: what cross-validation splits."""
        if isinstance(chosen, tuple) and len(chosen) == 2 and chosen[1] is Ellipsis:
            chosen = chosen[0]  # as scikit-learn writes it
        if isinstance(chosen, (tuple, str)):
            raise TypeError("a panel is indexed by trajectories only: a slice, a mask or numbers.")
        kept = np.atleast_1d(np.arange(len(self))[chosen])

        def part(array: Any | None) -> Any | None:
            return None if array is None else taken(array, kept, 0)

        own_times = self.times is not None and not same_for_all(self.times)
        return replace(
            self,
            values=part(self.values),
            ids=tuple(self.ids[j] for j in kept),
            covariates=part(self.covariates),
            lengths=part(self.lengths),
            times=part(self.times) if own_times else self.times,
            rows=part(self.rows),
            groups=None if self.groups is None else as_labels(self.groups)[kept],
        )

    def trajectory(self, j: int) -> str:
        """What to call a trajectory: by the table's name for it, or by its number.

        Parameters
        ----------
        j : int
            Which.
        """
        return f"trajectory {j}" if self.rows is None else f"subject {self.ids[j]!r}"

    def observation(self, j: int, t: int) -> str:
        """What to call an observation: its slice's label, its row in the table, or its number.

        Parameters
        ----------
        j, t : int
            Trajectory, and observation of it.
        """
        if self.slices is not None:
            return f"slice {self.slices[t]!r}"
        return f"slice {t}" if self.rows is None else f"row {self.rows[j, t] + 1}"

    def _of(self, rows: Indices) -> Panel:
        """The panel of some subjects, without what is known of its times."""
        return replace(self[rows], rows=None, times=None, time_error=None)

    def without(self, left_out: Collection[LeftOut]) -> Panel:
        """The panel without some of its variables.

        Parameters
        ----------
        left_out : collection of LeftOut
            What a fit left out.
        """
        dropped = {each.name for each in left_out}
        kept = [k for k, name in enumerate(self.names) if name not in dropped]
        if len(kept) == len(self.names):
            return self
        if isinstance(self.values, ArrayView):
            values: Any = self.values.with_variables(kept)
        else:
            xp = array_api_compat.array_namespace(self.values)
            index = xp.asarray(kept, device=array_api_compat.device(self.values))
            values = xp.take(self.values, index, axis=2)
        return replace(
            self,
            values=values,
            names=tuple(self.names[k] for k in kept),
            left_out=(*self.left_out, *left_out),
        )

    @staticmethod
    @checked
    def from_frame(
        df: Any,
        *,
        subject: str,
        variables: Names = None,
        slice: str | None = None,
        time: str | None = None,
        time_error: float | None = None,
        time_unit: str | None = None,
        covariates: Names = None,
        group: str | None = None,
        dt: float | None = None,
    ) -> Panel:
        """A panel from a table with one row per observation (pandas, polars, anything narwhals reads).

        Missing values stay NaN; so do combinations of subject and slice that have no row.

        Parameters
        ----------
        df : DataFrame
            The table; not modified.
        subject : str
            Column that says whose observation it is.
        variables : str or sequence of str, optional
            Numeric columns to analyse; if left out, every numeric one that has no other role and
            changes within subjects.
        slice : str, optional
            Column with a label shared by the subjects whose order is unknown (plate, visit code): one
            order for all. Left out: the rows of a subject are its observations, in an order of its own.
        time : str, optional
            Column with the times that are known, empty where they are not. Numbers are taken as they are; dates, of any time
            zone, count in `time_unit` since the earliest.
        time_error : float, optional
            Standard deviation of the times (None: exact).
        time_unit : str, optional
            Unit of dates (days).
        covariates : str or sequence of str, optional
            Columns of numbers, or of true and false (1 and 0), that travel with their observation.
        group : str, optional
            Column with a label (litter, centre) of each subject: subjects that share one may be alike in any way.
        dt : float, optional
            Time between neighbouring observations.

        Examples
        --------
        >>> import retrace_sde as rt
        >>> table, truth = rt.datasets.lose_time(rt.datasets.load_icu(), time="hour", random_state=0)
        >>> panel = rt.Panel.from_frame(table, subject="patient", slice="slice")
        >>> panel.values.shape, len(panel.slices)
        ((120, 12, 5), 12)
        """
        found = lay_out(
            df,
            subject=subject,
            variables=variables,
            slice=slice,
            time=time,
            time_unit=time_unit,
            exact_times=time_error is None,
            covariates=covariates,
            group=group,
        )
        if time_error is not None and time is None:
            raise ValueError("time_error needs a time column.")
        if time_error is not None:
            time_error = bounded_time_error(found.times, time_error)
        return Panel(**vars(found), dt=dt, time_error=time_error)

    @classmethod
    def from_xarray(
        cls, data: Any, *, subject: str, variable: str | None = None, **options: Any
    ) -> Panel:
        """A panel from a Dataset, or from a DataArray with dimensions `subject`, `slice` and `variable` (extra `formats`).

        Parameters
        ----------
        data : xarray.Dataset or xarray.DataArray
            What was observed.
        subject : str
            Dimension or coordinate that says whose observation it is.
        variable : str, optional
            Dimension of a DataArray along which the variables stand.
        **options
            `slice` and `time`, dimensions or coordinates, and the others of `from_frame`.

        Examples
        --------
        >>> import numpy as np, retrace_sde as rt
        >>> import xarray
        >>> data = xarray.DataArray(np.random.default_rng(0).normal(size=(5, 8, 2)), dims=("who", "plate", "gene"))
        >>> rt.Panel.from_xarray(data, subject="who", slice="plate", variable="gene").values.shape
        (5, 8, 2)
        """
        return cls.from_frame(frame_of_xarray(data, variable=variable), subject=subject, **options)

    def to_xarray(self, model: Any) -> Any:
        """A Dataset with the answer of a fitted `ReTrace`: each variable (subject, position) in time order (extra `formats`).

        Coordinates: `time`, and of a table's shared order `slice`; also `drift` and `diffusion` (variable, by).

        Parameters
        ----------
        model : ReTrace
            Fitted to this panel.

        Examples
        --------
        >>> import retrace_sde as rt
        >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(10, 6, 0.05, random_state=1)
        >>> panel = rt.Panel.from_array(Y, dt=0.05)
        >>> sorted(panel.to_xarray(rt.ReTrace(random_state=0).fit(panel)).data_vars)
        ['diffusion', 'drift', 'x0', 'x1']
        """
        return xarray_of_panel(self, model.result_)

    @classmethod
    def from_aeon(
        cls,
        X: Any,
        *,
        names: Sequence[str] | None = None,
        groups: Any | None = None,
        dt: float | None = None,
    ) -> Panel:
        """A panel from (case, channel, time) as in aeon and sktime, or a list of arrays (channel, time).

        Parameters
        ----------
        X : array (n, d, T) or list of arrays (d, T_j)
            Cases.
        names : sequence of str, optional
            Names of the channels.
        groups : sequence (n,), optional
            Labels of groups of cases that may be alike in any way.
        dt : float, optional
            Time between neighbouring observations.

        Examples
        --------
        >>> import numpy as np, retrace_sde as rt
        >>> rt.Panel.from_aeon(np.zeros((5, 2, 8))).values.shape
        (5, 8, 2)
        """
        if isinstance(X, (list, tuple)):
            arrays = [np.asarray(unmasked(each)).T for each in X]
            return cls.from_trajectories(arrays, names=names, groups=groups, dt=dt)
        values = np.asarray(unmasked(X))
        if values.ndim != 3:
            raise ValueError(
                f"aeon's layout is (case, channel, time); got an array of shape {values.shape}."
            )
        return cls.from_array(values.transpose(0, 2, 1), names=names, groups=groups, dt=dt)

    @classmethod
    def from_trajectories(
        cls,
        trajectories: Sequence[ArrayLike],
        *,
        names: Sequence[str] | None = None,
        ids: Sequence[str] | None = None,
        groups: Any | None = None,
        dt: float | None = None,
    ) -> Panel:
        """A panel from arrays of different length, for independent orders.

        Parameters
        ----------
        trajectories : sequence of arrays (T_j, d)
            Each trajectory's observations, in whatever order.
        names, ids : sequence of str, optional
            Of variables and trajectories.
        groups : sequence (n,), optional
            Labels of groups of trajectories that may be alike in any way.
        dt : float, optional
            Time between neighbouring observations.

        Examples
        --------
        >>> import numpy as np, retrace_sde as rt
        >>> rt.Panel.from_trajectories([np.zeros((4, 2)), np.zeros((6, 2))]).lengths
        array([4, 6])
        """
        arrays = [np.asarray(unmasked(each)) for each in trajectories]
        if not arrays or any(each.ndim != 2 for each in arrays):
            raise ValueError("trajectories must be a list of arrays (time, variable).")
        widths = sorted({each.shape[1] for each in arrays})
        if len(widths) > 1:
            raise ValueError(
                f"all trajectories must have the same variables; got {widths} of them."
            )
        lengths = np.array([len(each) for each in arrays], dtype=np.intp)
        if lengths.min() < 1:
            raise ValueError(f"trajectory {int(lengths.argmin())} has no observations: drop it.")
        values = np.empty((len(arrays), lengths.max(), widths[0]))
        for row, each in zip(values, arrays, strict=True):
            # Padded with its own last state, a trajectory keeps its range and its level.
            row[: len(each)], row[len(each) :] = each, each[-1]
        panel = cls.from_array(values, names=names, ids=ids, groups=groups, dt=dt)
        return replace(panel, lengths=lengths)

    @classmethod
    def from_array(
        cls,
        values: Any,
        *,
        names: Sequence[str] | None = None,
        ids: Sequence[str] | None = None,
        covariates: Any | None = None,
        covariate_names: Sequence[str] | None = None,
        groups: Any | None = None,
        dt: float | None = None,
    ) -> Panel:
        """A panel from an array (trajectory, time, variable).

        The array is neither copied nor checked here: `fit` does that. What is masked is missing.

        Parameters
        ----------
        values : array (n, T, d)
            numpy, masked, or of any array-API library.
        names, ids : sequence of str, optional
            Of variables and trajectories; numbered if left out.
        covariates : array (n, T, k), optional
            They travel with their observation.
        covariate_names : sequence of str, optional
            Their names.
        groups : sequence (n,), optional
            Labels of groups of trajectories that may be alike in any way.
        dt : float, optional
            Time between neighbouring observations.

        Examples
        --------
        >>> import numpy as np, retrace_sde as rt
        >>> rt.Panel.from_array(np.zeros((5, 8, 2)), ids=list("abcde")).ids
        ('a', 'b', 'c', 'd', 'e')
        """
        values, covariates = unmasked(values), unmasked(covariates)
        values = values if hasattr(values, "shape") else np.asarray(values)
        if covariates is not None and not hasattr(covariates, "shape"):
            covariates = np.asarray(covariates)
        n, d = (values.shape[0], values.shape[-1]) if len(values.shape) == 3 else (0, 0)
        k = covariates.shape[-1] if covariates is not None and covariates.shape else 0
        numbers: Any = Numbers(n)
        return cls(
            values,
            tuple(names) if names is not None else tuple(f"x{i}" for i in range(d)),
            tuple(numbers if ids is None else ids) if as_lazy(values) is None or ids else numbers,
            covariates,
            tuple(covariate_names)
            if covariate_names is not None
            else tuple(f"u{i}" for i in range(k)),
            dt,
            groups=None if groups is None else as_labels(groups),
        )
