"""Neural regression on released aggregates; needs the extra ``neural`` (jax, optax, equinox)."""

import os

# On the processor a training ends with the same network to the last bit; an accelerator sums in any order.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
