//! zarr (stub: the zarr room replaces it).
