"""Panels that stay where they are stored: memory maps, zarr and dask arrays, walked chunk by chunk."""
