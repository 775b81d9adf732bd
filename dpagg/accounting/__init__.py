"""What each mechanism costs: exact privacy curves, calibration, composition and certificates."""

from dpagg.accounting.composition import Composition
from dpagg.accounting.curve_table import ComposedCurve, Curve, CurveTable, composed
from dpagg.accounting.event import Event
from dpagg.accounting.gaussian_release import AdaSSP, GaussianRelease, LabelGaussian, NoisyGradientDescent
from dpagg.accounting.hessian_mixing import HessianMixing, LinearMixing
from dpagg.accounting.hidden_noise import HiddenNoiseAggregation, HiddenNoiseUserAggregation
from dpagg.accounting.noisy_label_aggregation import NoisyLabelAggregation
from dpagg.accounting.sampled_aggregation import SampledAggregation
from dpagg.accounting.unweighted_sums import UnweightedSums
from dpagg.accounting.user_aggregation import UserAggregation
from dpagg.accounting.weighted_aggregation import WeightedAggregation

__all__ = [
    "AdaSSP",
    "ComposedCurve",
    "Composition",
    "Curve",
    "CurveTable",
    "Event",
    "GaussianRelease",
    "HessianMixing",
    "HiddenNoiseAggregation",
    "HiddenNoiseUserAggregation",
    "LabelGaussian",
    "LinearMixing",
    "NoisyGradientDescent",
    "NoisyLabelAggregation",
    "SampledAggregation",
    "UnweightedSums",
    "UserAggregation",
    "WeightedAggregation",
    "composed",
]
