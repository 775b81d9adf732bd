"""Why a release of bags claims no amplification by sampling: a table where the usual formula is false."""

import math

import numpy as np

from dpagg.accounting.sampled_aggregation import SampledAggregation
from dpagg.kernels.bags import bag_streams, weighted_bags
from dpagg.kernels.streams import Secret

NUM_ROWS, BAG_SIZE, NOISE_STD, EPSILON, DRAWS = 20, 2, 2.0, 1.0, 40_000


def losses(label):
    """Privacy losses of releases of one bag in ten: one row alone has a feature that isn't 0, and its label changes.

    Where the released feature isn't 0 the row is in the bag, as everybody sees. The label of the bag is then N(x label,
    tau^2), every other label being 0; elsewhere both tables give the same law.
    """
    secret = Secret.insecure(7)
    keys = [b"%d" % row for row in range(NUM_ROWS)]
    rows = np.zeros((NUM_ROWS, 2))
    rows[0] = 1.0, label
    bags = np.stack([rows[np.argsort(secret.ranks(f"{i}", keys)[:, 0])[:BAG_SIZE]] for i in range(DRAWS)])
    drawn = weighted_bags(bags, bag_streams(secret, "draws", np.arange(DRAWS)))
    x, y = drawn.features[:, 0], drawn.labels + NOISE_STD * drawn.noise
    return ((y - 0.0) ** 2 - (y - x) ** 2) / (2 * NOISE_STD**2), x


def test_the_usual_amplification_is_false_and_the_certificate_holds():
    event = SampledAggregation(
        bag_size=BAG_SIZE,
        label_range=1.0,
        leverage=1.0,
        residual_floor=0.0,
        residual_bound=0.0,
        label_noise_variance=NOISE_STD**2,
    )
    share = BAG_SIZE / NUM_ROWS
    loss, x = losses(1.0)
    assert abs(np.mean(x != 0) - share) < 5 * math.sqrt(share / DRAWS)
    amplified = math.log1p(share * math.expm1(EPSILON))
    claimed = share * event.delta(EPSILON)
    gains = np.maximum(0.0, -np.expm1(amplified - loss))
    truth, error = gains.mean(), gains.std() / math.sqrt(DRAWS)
    assert truth - 5 * error > claimed  # what the usual formula would have promised
    assert truth + 5 * error < event.delta(amplified)  # what is promised
    # The truth is the share times the delta of the bag, at the smaller epsilon.
    assert abs(truth - share * event.delta(amplified)) < 5 * error


def test_what_is_claimed_does_not_fall_with_the_share_of_rows_in_bags():
    fields = set(SampledAggregation.__dataclass_fields__)
    assert not fields & {"num_rows", "num_bags", "sampling_probability", "fraction"}
