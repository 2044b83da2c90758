"""scikit-learn's conventions for estimators, without importing it: its base class takes .9 of the 1.3 s of `from retrace_sde import ReTrace`.

`clone`, `cross_val_score`, `GridSearchCV` and pipelines ask for methods, not for the class. What only scikit-learn can answer (tags,
metadata routing) is imported when it asks. Limit: `isinstance(model, BaseEstimator)` is False.
"""

from __future__ import annotations

import inspect
from typing import Any, Self

from retrace_sde.io.deferred import deferred

base = deferred("sklearn.base")


class Estimator:
    """An object that is described by the arguments of its `__init__`, which are its attributes.

    Examples
    --------
    >>> import sklearn, retrace_sde as rt
    >>> model = rt.ReTrace(dt=0.1).set_params(drift="linear")
    >>> model, model.get_params()["drift"]
    (ReTrace(dt=0.1, drift='linear'), 'linear')
    >>> with sklearn.config_context(enable_metadata_routing=True):
    ...     model.set_fit_request(groups=True).get_metadata_routing().fit.requests["groups"]
    True
    """

    @classmethod
    def _names(cls) -> list[str]:
        return list(inspect.signature(cls.__init__).parameters)[1:]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings by name.

        Parameters
        ----------
        deep : bool
            Ignored, for scikit-learn: no setting is an estimator.
        """
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **params: Any) -> Self:
        """Change some settings.

        Parameters
        ----------
        **params
            By name.
        """
        for name, value in params.items():
            if name not in self._names():
                raise ValueError(
                    f"Invalid parameter {name!r} for estimator {self!r}. Valid parameters are: {self._names()!r}."
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """The settings that are not the default."""
        known = inspect.signature(type(self).__init__).parameters
        given = {k: v for k, v in self.get_params().items() if repr(v) != repr(known[k].default)}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in given.items())})"

    def __sklearn_tags__(self) -> Any:
        """For scikit-learn: what its own base class says."""
        return base.BaseEstimator().__sklearn_tags__()

    def get_metadata_routing(self) -> Any:
        """Which arguments of `fit` a meta-estimator passes on."""
        return self._routed().get_metadata_routing()

    def set_fit_request(self, **requests: Any) -> Self:
        """Which arguments of `fit` a meta-estimator shall pass on.

        Parameters
        ----------
        **requests
            True or False by name.
        """
        self._metadata_request = self._routed().set_fit_request(**requests)._metadata_request
        return self

    def _routed(self) -> Any:
        """An estimator of scikit-learn's with the same requests."""
        found = _with_base(type(self))()
        if hasattr(self, "_metadata_request"):  # the name that scikit-learn's clone carries over
            found._metadata_request = self._metadata_request
        return found


def _with_base(kind: type) -> type:
    """A class with scikit-learn's base and the same `fit`."""
    return type(kind.__name__, (base.BaseEstimator,), {"fit": kind.fit})  # type: ignore[attr-defined]


def check_is_fitted(model: Any, name: str) -> None:
    """Raise scikit-learn's NotFittedError where the attribute that a fit sets is not there."""
    if not hasattr(model, name):
        from sklearn.exceptions import NotFittedError

        raise NotFittedError(
            f"This {type(model).__name__} instance is not fitted yet. Call 'fit' with appropriate arguments before using this estimator."
        )
