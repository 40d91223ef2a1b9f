//! Tests against a bucket in memory.
