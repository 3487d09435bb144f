"""Operations and kernels against independent oracles."""
