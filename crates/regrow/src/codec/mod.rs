//! codecs (stub: the zarr room replaces it).
