//! What a caller asks for: `regrow/_options.py` has brought it into these tuples.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use regrow::array::{Dtype, Shape};
use regrow::engine::{Compression, Layout, LeafChunking, OrbaxOptions, TemplateLeaf};
use regrow::tree::{PathPattern, Tree};
use regrow::{Error, LoadOptions, OpenOptions, Result, SaveOptions};

use crate::columns::{StructureIn, to_tree};
use crate::error::OrRaise;

/// Patterns and names of dtypes.
pub type CastsIn = Vec<(String, String)>;

/// Chunk size in bytes, axes to cut first, outer chunk, inner chunk.
pub type ChunkingIn = (Option<u64>, Vec<usize>, Option<Vec<u64>>, Option<Vec<u64>>);

/// OCDBT, zarr v3, chunking, data file size, rich types, sharding, array metadatas, v1, chunking by leaf.
pub type OrbaxIn = (bool, bool, ChunkingIn, Option<u64>, bool, bool, bool, bool, Vec<(String, ChunkingIn)>);

/// Overwrite, durable, casts, compression, metadata as JSON, strict, budget, Orbax' options.
pub type SaveIn =
    (bool, bool, CastsIn, Option<CompressionIn>, Option<String>, bool, Option<u64>, Option<OrbaxIn>);

/// `"none"`, or a level of zstd.
#[derive(FromPyObject)]
pub enum CompressionIn {
    Level(i32),
    Name(String),
}

/// The options of a save.
pub fn save_options(options: SaveIn) -> Result<SaveOptions> {
    let (overwrite, durable, casts, compression, metadata, strict_orbax, budget_bytes, orbax) = options;
    let compression = match compression {
        None => None,
        Some(CompressionIn::Level(level)) => Some(Compression::Zstd(level)),
        Some(CompressionIn::Name(name)) if name == "none" => Some(Compression::None),
        Some(CompressionIn::Name(name)) => {
            return Err(Error::invalid(format!("the compression {name:?} is not known")));
        }
    };
    let custom_metadata =
        match metadata {
            None => None,
            Some(text) => Some(serde_json::from_str(&text).map_err(|error| {
                Error::invalid(format!("metadata is no JSON that can be stored: {error}"))
            })?),
        };
    Ok(SaveOptions {
        layout: orbax.map_or(Ok(Layout::Regrow), |orbax| orbax_options(orbax).map(Layout::Orbax))?,
        overwrite,
        not_durable: !durable,
        cast: to_casts(casts)?,
        compression,
        custom_metadata,
        strict_orbax,
        budget_bytes,
    })
}

/// The options of a load; opening has happened before.
pub fn load_options(
    only: &[String],
    casts: CastsIn,
    template: Option<Tree<TemplateLeaf>>,
    partial: bool,
    unverified: bool,
    budget_bytes: Option<u64>,
) -> Result<LoadOptions> {
    Ok(LoadOptions {
        open: OpenOptions::default(),
        only: only.iter().map(|text| PathPattern::new(text)).collect::<Result<_>>()?,
        cast: to_casts(casts)?,
        template,
        partial,
        unverified,
        budget_bytes,
    })
}

/// Structure, dtypes by number, shapes, whether to skip.
pub type TemplateIn<'py> = (StructureIn<'py>, Vec<Option<usize>>, Vec<Option<Vec<u64>>>, PyBackedBytes);

/// What a load is to fit.
pub fn to_template(columns: TemplateIn<'_>) -> PyResult<Tree<TemplateLeaf>> {
    let (structure, dtypes, shapes, skips) = columns;
    let mut leaves = Vec::with_capacity(dtypes.len());
    for ((dtype, shape), &skip) in dtypes.into_iter().zip(shapes).zip(skips.iter()) {
        let dtype = dtype.and_then(|number| Dtype::all().nth(number));
        let shape = shape.map(Shape::new).transpose().or_raise()?;
        leaves.push(TemplateLeaf { dtype, shape, skip: skip != 0 });
    }
    to_tree(&structure)?.with_leaves(leaves).or_raise()
}

fn to_casts(casts: CastsIn) -> Result<Vec<(PathPattern, Dtype)>> {
    casts.into_iter().map(|(pattern, dtype)| Ok((PathPattern::new(&pattern)?, dtype.parse()?))).collect()
}

fn orbax_options(options: OrbaxIn) -> Result<OrbaxOptions> {
    let (
        use_ocdbt,
        use_zarr3,
        chunking,
        ocdbt_target_data_file_size,
        rich_types,
        write_sharding,
        write_array_metadatas,
        v1,
        per_leaf,
    ) = options;
    let LeafChunking { chunk_byte_size, shard_axes, write_chunk_shape, read_chunk_shape } =
        to_chunking(chunking)?;
    let per_leaf: Result<Vec<_>> = per_leaf
        .into_iter()
        .map(|(pattern, chunking)| Ok((PathPattern::new(&pattern)?, to_chunking(chunking)?)))
        .collect();
    Ok(OrbaxOptions {
        use_ocdbt,
        use_zarr3,
        chunk_byte_size,
        shard_axes,
        write_chunk_shape,
        read_chunk_shape,
        ocdbt_target_data_file_size,
        rich_types,
        write_sharding,
        write_array_metadatas,
        v1,
        per_leaf: per_leaf?,
    })
}

fn to_chunking((chunk_byte_size, shard_axes, write, read): ChunkingIn) -> Result<LeafChunking> {
    Ok(LeafChunking {
        chunk_byte_size,
        shard_axes,
        write_chunk_shape: write.map(Shape::new).transpose()?,
        read_chunk_shape: read.map(Shape::new).transpose()?,
    })
}
