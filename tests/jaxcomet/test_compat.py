"""The bridge over jax versions."""

import jax
import jax.numpy as jnp

from jaxcomet._compat import enable_x64


def test_double_precision_holds_inside_the_context_alone():
    before = jax.config.read("jax_enable_x64")
    with enable_x64():
        assert jnp.asarray(1.0).dtype == jnp.float64
        with enable_x64(False):
            assert jnp.asarray(1.0).dtype == jnp.float32
    assert jax.config.read("jax_enable_x64") == before
