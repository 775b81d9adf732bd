"""Certificates and models of every kind, made without Spark, for tests of the page."""

from __future__ import annotations

import dataclasses

import numpy as np

from dpagg.accounting import GaussianRelease, NoisyLabelAggregation, UnweightedSums, WeightedAggregation
from dpagg.accounting.calibration import with_least_label_noise
from dpagg.accounting.certificate import LABEL_DP_PUBLIC, certificate, label_dp_terms
from dpagg.accounting.sampled_aggregation import SampledAggregation
from dpagg.kernels.schema import Categorical, Label, Numeric, Schema
from dpagg.regression.least_squares import fit_least_squares
from dpagg.regression.model import LinearModel

SCHEMA = Schema(
    (Numeric("price", 0.0, 500.0, "indicator"), Categorical("device", ("mobile", "desktop"), True, "drop")),
    Label("sale_amount", 0.0, 100.0, 0.0),
    True,
)
MECHANISMS = ("wtd-flag", "assumed", "sampled-wtd-flag", "sampled-noisy-wtd-lag", "unweighted-sums", "seeded", "fit")


def example_certificate(kind: str = "wtd-flag", schema: Schema = SCHEMA, **facts):
    """Return the certificate of a small release, as runs write it."""
    label = schema.label
    bare = WeightedAggregation(
        num_bags=1000, label_range=label.range, leverage=(0.02,), residual_floor=0.0, residual_bound=(60.0,)
    )
    event, mechanism, terms, extra = None, kind, label_dp_terms(), {}
    if kind in ("wtd-flag", "seeded", "assumed"):
        mechanism = "wtd-flag"
        event = with_least_label_noise(bare, epsilon=1.0, delta=1e-6)
        if kind == "assumed":
            event = dataclasses.replace(event, residual_floor=event.label_noise_variance, label_noise_variance=0.0)
            terms.insert(0, "ASSUMED by the user, not checked: the mean squared residual is at least 1000.")
        extra = {"rank": schema.num_columns, "label_noise_level": "known"}
    elif kind == "sampled-wtd-flag":
        sampled = SampledAggregation(
            bag_size=200, label_range=label.range, leverage=(0.05,), residual_floor=0.0, residual_bound=(60.0,)
        )
        event = with_least_label_noise(sampled, epsilon=1.0, delta=1e-6)
        extra = {"bag_size": 200, "label_noise_level": "known"}
    elif kind == "sampled-noisy-wtd-lag":
        event = NoisyLabelAggregation(
            bag_size=10, noised_fraction=1.0, label_range=label.range, noise_std=1500.0, weight_cap=1.0
        )
        extra = {"bag_size": 10, "num_noised": 10, "weight_cap": 1.0, "label_noise_level": "known"}
    elif kind == "unweighted-sums":
        event, terms = UnweightedSums(), ["None would help: see the statement."]
    else:
        mechanism, event, terms = "ihm", GaussianRelease(mu=0.2), ["One row is protected."]
        extra = {"solver": {"name": "ihm"}, "row_bound": 1.7, "label_center": 50.0, "label_scale": 50.0}
    fitted = kind == "fit"
    noise = (
        event.noise_std**2 if isinstance(event, NoisyLabelAggregation) else getattr(event, "label_noise_variance", 0)
    )
    declared = {
        "intercept": schema.intercept,
        "features": [_declared(feature) for feature in schema.features],
        "label": {"name": label.name, "lower": label.lower, "upper": label.upper, "missing": {"constant": 0.0}},
    }
    left_out = {"missing_feature": 3, "over_leverage_cap": 0, "over_unit_limit": 0}
    shared = {} if fitted else {"num_bags": 1000, "rows_left_out": left_out, "engine": "factor"}
    return certificate(
        event,
        unit="one row" if fitted else "one label",
        mechanism=mechanism,
        adjacency="zero_out_one_row" if fitted else None,
        epsilon=1.0,
        delta=1e-6,
        is_private=kind != "seeded",
        assumptions=terms,
        public=LABEL_DP_PUBLIC,
        released="model" if fitted else "table",
        facts={
            "release_id": "ab" * 32,
            "draw_id": "cd" * 16,
            "num_rows": 20_000,
            "columns": [dataclasses.asdict(column) for column in schema.columns],
            "label": {"name": label.name, "lower": label.lower, "upper": label.upper},
            "schema": declared,
            "label_noise_variance": noise,
            "failure_probability": 0.0,
            "randomness": "public seed: not private" if kind == "seeded" else "operating system",
            "input_version": {"format": "delta", "version": 3},
            "config_digest": "ef" * 32,
            "code_version": "0.1.0",
            **shared,
            **extra,
            **facts,
        },
    )


def example_model(schema: Schema = SCHEMA, seed: int = 3) -> LinearModel:
    """Return a fit on 1,000 made-up sums that belong to the certificate above."""
    rng = np.random.default_rng(seed)
    columns = schema.num_columns
    truth = np.linspace(5.0, -3.0, columns)
    features = rng.standard_normal((1000, columns))
    labels = features @ truth + 2.0 * rng.standard_normal(1000)
    factor = np.linalg.qr(np.column_stack([features, labels]), mode="r")
    fit = fit_least_squares(factor, 1000, column_names=[column.name for column in schema.columns])
    return LinearModel.from_fit(
        fit,
        schema,
        num_rows=20_000,
        details={"method": "least-squares"},
        release={"release_id": "ab" * 32, "mechanism": "wtd-flag", "private": True, "epsilon": 1.0, "delta": 1e-6},
    )


def _declared(feature):
    if isinstance(feature, Numeric):
        kind = {"type": "numeric", "lower": feature.lower, "upper": feature.upper}
    else:
        kind = {"type": "categorical", "categories": list(feature.categories), "other": feature.other}
    return kind | {"name": feature.name, "missing": feature.missing}
