"""Neural regression on released aggregates; needs the extra ``neural`` (jax, optax, equinox)."""
