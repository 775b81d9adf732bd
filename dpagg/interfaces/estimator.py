"""The default private regression as an estimator of scikit-learn."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse

from dpagg.errors import ConfigError, EnvironmentFault
from dpagg.interfaces.notebook import fit
from dpagg.local.reading import numbers

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.exceptions import DataConversionWarning
    from sklearn.utils import check_consistent_length, check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError:
    raise EnvironmentFault("scikit-learn is not installed", remedy="Run: pip install 'dpagg[sklearn]'") from None

__all__ = ["HessianMixingRegressor"]


class HessianMixingRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Private linear regression by iterative Hessian mixing, the default solver of ``dpagg fit``.

    Guarantee: what is learned (`coef_`, `intercept_` and the rest) is (epsilon, delta)-private for one row
    (adjacency ``zero_out_one_row``: everything in it; the number of rows is public), or one label
    (``change_one_label``). It rests on bounds that are declared and not read off the rows. Each call of `fit` is a
    release of its own, and all of them count; so does every fold of a cross-validation. `score` on the training rows
    is not private.

    Parameters
    ----------
    epsilon : float
        Of the guarantee.
    delta : float, optional
        Of the guarantee; by default n to the power of -1.5.
    feature_lower, feature_upper : float or array-like of shape (n_features,)
        Bounds of the features, required; values outside are clipped to them.
    label_lower, label_upper : float
        Bounds of the label, required; values outside are clipped to them.
    adjacency : str
        ``zero_out_one_row`` or ``change_one_label``.
    fit_intercept : bool
        Whether the model has an intercept.
    norm_bound : float, optional
        Bound on the norm of the coefficients in encoded units.
    num_iterations : int
        Rounds of the solver.
    random_state : int, RandomState or None
        None takes the randomness from the operating system. Anything else is NOT PRIVATE: whoever knows the state can
        take the noise away. For tests and papers only.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Change of the label a unit of each feature.
    intercept_ : float
        Prediction where all features are 0.
    certificate_ : dict
        The promise, as `dpagg certificate show` reads it.
    fit_ : dpagg.Fit
        Model with standard errors; its ``_repr_html_`` shows them.
    n_features_in_ : int
        Number of features.

    Notes
    -----
    No value of a row decides an error: a missing or infinite feature becomes the middle of its bounds, a label the
    middle of its own, in `fit` and in `predict`.

    Examples
    --------
    >>> from dpagg import HessianMixingRegressor
    >>> import numpy as np
    >>> X = np.random.default_rng(0).uniform(-1, 1, (2000, 2))
    >>> model = HessianMixingRegressor(feature_lower=-1, feature_upper=1, label_lower=-3, label_upper=3)
    >>> model.fit(X, X @ [1.0, -2.0]).certificate_["epsilon"]
    1.0
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        feature_lower: ArrayLike | None = None,
        feature_upper: ArrayLike | None = None,
        label_lower: float | None = None,
        label_upper: float | None = None,
        adjacency: str = "zero_out_one_row",
        fit_intercept: bool = True,
        norm_bound: float | None = None,
        num_iterations: int = 5,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.feature_lower = feature_lower
        self.feature_upper = feature_upper
        self.label_lower = label_lower
        self.label_upper = label_upper
        self.adjacency = adjacency
        self.fit_intercept = fit_intercept
        self.norm_bound = norm_bound
        self.num_iterations = num_iterations
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn may expect: missing features are taken, and few rows are mostly noise."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.regressor_tags.poor_score = True
        return tags

    def fit(self, X: Any, y: Any) -> HessianMixingRegressor:
        """Fit privately.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features.
        y : array-like of shape (n_samples,)
            Labels.

        Returns
        -------
        HessianMixingRegressor
            Itself.

        Raises
        ------
        ConfigError
            If a bound is missing or not in order.
        PrivacyError
            If the guarantee cannot be met.
        ValueError
            If X and y are no arrays of numbers that fit together, or have one row.
        """
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        X = self._features(X, ensure_min_samples=2)
        y = _labels(y)
        check_consistent_length(X, y)
        lower, upper = self._bounds("feature_lower"), self._bounds("feature_upper")
        label_lower, label_upper = float(self._bounds("label_lower")[0]), float(self._bounds("label_upper")[0])
        names = self._names()
        features = [
            {
                "name": name,
                "type": "numeric",
                "lower": float(low),
                "upper": float(high),
                "missing": {"constant": float(low / 2 + high / 2)},
            }
            for name, low, high in zip(names, lower, upper, strict=True)
        ]
        label = {
            "name": "y",
            "lower": label_lower,
            "upper": label_upper,
            "missing": {"constant": label_lower / 2 + label_upper / 2},
        }
        self.fit_ = fit(
            pa.table(dict(zip(names, X.T, strict=True)) | {"y": y}),
            schema={"intercept": bool(self.fit_intercept), "features": features, "label": label},
            privacy={
                "epsilon": float(self.epsilon),
                "delta": len(y) ** -1.5 if self.delta is None else float(self.delta),
                "adjacency": self.adjacency,
                "num_rows": len(y),
            },
            mechanism={"name": "ihm", "num_iterations": self.num_iterations, "norm_bound": self.norm_bound},
            insecure_seed=self._seed(),
        )
        user = self.fit_.model.to_user_units()
        self.coef_ = np.array([feature["per_unit"] for feature in user["features"]])
        self.intercept_ = float(user["intercept"])
        self.certificate_ = self.fit_.certificate
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predict labels; features are clipped to their bounds first, as in the fit.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        check_is_fitted(self)
        X = self._features(X, reset=False)
        found: NDArray[np.float64] = self.fit_.predict(pa.table(dict(zip(self._names(), X.T, strict=True))))
        return found

    def _features(self, X: Any, **options: Any) -> NDArray[np.float64]:
        # Where scikit-learn converts cells itself, its error quotes the one that it could not.
        if hasattr(X, "columns") and hasattr(X, "apply"):
            if any(kind.kind not in "biufc" for kind in X.dtypes):
                X = X.apply(lambda column: numbers(column.to_numpy(dtype=object)))
        elif not issparse(X):
            cells = np.asarray(X)
            if cells.dtype.kind in "OSU":
                X = numbers(cells)
        checked: NDArray[np.float64] = validate_data(self, X, dtype=np.float64, ensure_all_finite=False, **options)
        return checked

    def _bounds(self, name: str) -> NDArray[np.float64]:
        given = getattr(self, name)
        if given is None:
            raise ConfigError(
                f"{name} is not given, and a bound that is read off the rows would tell of them",
                path=name,
                remedy="Declare what is known to hold; values outside are clipped.",
            )
        width = self.n_features_in_ if name.startswith("feature") else 1
        found = np.asarray(given, dtype=np.float64)
        if found.shape not in ((), (width,)):
            raise ConfigError(f"an array of shape {found.shape} is given, expected a number or {width}", path=name)
        return np.broadcast_to(found, (width,))

    def _names(self) -> list[str]:
        names = list(getattr(self, "feature_names_in_", ()))
        if names and len({*map(str.lower, names), "y"}) == len(names) + 1 and all(map(str.strip, names)):
            return names
        return [f"x{position}" for position in range(self.n_features_in_)]

    def _seed(self) -> int | None:
        if self.random_state is None:
            return None
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31))


def _labels(y: Any) -> NDArray[np.float64]:
    cells = np.asarray(y)
    if cells.ndim == 2 and cells.shape[1] == 1:
        message = "A column-vector y was passed when a 1d array was expected."
        warnings.warn(message, DataConversionWarning, stacklevel=3)
        cells = cells[:, 0]
    if cells.ndim != 1:
        raise ValueError(f"y has shape {cells.shape}, expected one label a row")
    return cells.astype(np.float64) if cells.dtype.kind in "biuf" else numbers(cells)
