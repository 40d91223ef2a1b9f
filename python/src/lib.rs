//! regrow's Python extension: arguments in, core types through, views out.
//!
//! A whole tree crosses the border in one call. The common containers and leaves are taken apart
//! and put together here, a fraction of a microsecond each; for all others the Python half
//! (`python/regrow/`) is asked. Array data is never copied: what is saved stays in the memory of
//! its Python owner, and what is loaded is shown to NumPy where it lies.
//!
//! | module | does |
//! |---|---|
//! | `flatten` | taking a user's tree apart |
//! | `unflatten` | putting a tree together |
//! | `addresses` | maps by where Python's objects lie |
//! | `location` | paths and URLs, with the options of their storage |
//! | `columns` | the structure of a tree, keys, kinds of nodes |
//! | `gather` | what a user's leaves are, and what a template's want, as columns |
//! | `leaves` | the columns to the engine's leaves, and the engine's to columns |
//! | `memory` | all that is `unsafe`: Python's memory as [`Bytes`](bytes::Bytes), and the reverse |
//! | `options` | what a caller asks for |
//! | `checkpoint` | an opened checkpoint |
//! | `regions` | regions of its leaves into memory of the caller |
//! | `background` | saves while Python goes on |
//! | `items` | several things in one checkpoint |
//! | `convert` | from one layout to another |
//! | `copy` | a checkpoint to another place |
//! | `diff` | two checkpoints side by side |
//! | `report` | checkpoints as a page to look at |
//! | `coordination` | what the processes of a job tell each other |
//! | `remove` | one checkpoint, or what a save has left |
//! | `repair` | parity beside a checkpoint, and repair by it |
//! | `seal` | checksums beside a checkpoint, and signatures |
//! | `list` | the checkpoints in a folder |
//! | `steps` | a folder of steps: what is kept, who reads and who writes |
//! | `manager` | the manager of a training loop's steps |
//! | `flax` | Flax' msgpack to Python's objects and back, without a checkpoint |
//! | `safetensors` | safetensors files as safetensors shows them |
//! | `trak` | a TRAK store: rows, marks, flags |
//! | `pytree_data` | the entries of a data file's manifest |
//! | `equinox` | Equinox leaf files, for `regrow.equinox` |
//! | `command` | the command `regrow` |
//! | `watch` | progress callbacks and Ctrl-C during long work |
//! | `error` | errors to exceptions |
//!
//! The interpreter is released around all work of the engine, whose threads live only as long as
//! the call: so nothing is left behind that a `fork` could break. Only `background` has threads
//! that outlive a call; a child knows that they are its parent's.

mod addresses;
mod background;
mod cache;
mod checkpoint;
mod columns;
mod command;
mod convert;
mod coordination;
mod copy;
mod diff;
mod equinox;
mod error;
mod flatten;
mod flax;
mod gather;
mod items;
mod leaves;
mod list;
mod literal;
mod location;
mod manager;
mod memory;
mod options;
mod pytree_data;
mod regions;
mod remove;
mod repair;
mod report;
mod safetensors;
mod seal;
mod shards;
mod steps;
mod trak;
mod unflatten;
mod watch;

/// The extension module.
#[pyo3::pymodule(gil_used = false)]
mod _native {
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;
    use regrow::array::Dtype;

    #[pymodule_export]
    use crate::background::{AsyncSaver, SaveHandle};
    #[pymodule_export]
    use crate::cache::Cache;
    #[pymodule_export]
    use crate::checkpoint::{Checkpoint, open, open_intact, save, verify, verify_share, verify_steps};
    #[pymodule_export]
    use crate::columns::{Structure, idle_patterns, match_paths, paths};
    #[pymodule_export]
    use crate::command::command;
    #[pymodule_export]
    use crate::convert::{SharedConvert, convert, convert_rules, convert_share, plan_convert};
    #[pymodule_export]
    use crate::coordination::{Coordinator, Session};
    #[pymodule_export]
    use crate::copy::copy;
    #[pymodule_export]
    use crate::diff::{diff, held};
    #[pymodule_export]
    use crate::equinox::{
        EquinoxFile, StagedFile, jax_leaf_order, npy_header, open_equinox, parse_npy_header, write_equinox,
    };
    #[pymodule_export]
    use crate::flatten::{Flat, flatten};
    #[pymodule_export]
    use crate::flax::{msgpack_pack, msgpack_unpack};
    #[pymodule_export]
    use crate::gather::{TemplateLeaves, leaf_columns, template_leaves};
    #[pymodule_export]
    use crate::items::ItemsSave;
    #[pymodule_export]
    use crate::list::list_checkpoints;
    #[pymodule_export]
    use crate::literal::literal;
    #[pymodule_export]
    use crate::location::{
        Location, layout_for, local_path, refuse_folder_named_like_a_file, set_mode, sync_folder,
    };
    #[pymodule_export]
    use crate::manager::{DueStep, Followed, Preemption, Run, Together};
    #[pymodule_export]
    use crate::memory::{MapBuffer, Slab};
    #[pymodule_export]
    use crate::pytree_data::{pytree_appears, pytree_entries, pytree_manifest};
    #[pymodule_export]
    use crate::regions::{Regions, load_regions_into};
    #[pymodule_export]
    use crate::remove::remove;
    #[pymodule_export]
    use crate::repair::{add_parity, repair};
    #[pymodule_export]
    use crate::report::{ReportPage, report};
    #[pymodule_export]
    use crate::safetensors::{
        safetensors_bytes, safetensors_open, safetensors_open_bytes, safetensors_open_mapped,
    };
    #[pymodule_export]
    use crate::seal::{public_key, seal, sign};
    #[pymodule_export]
    use crate::steps::{StepLease, Steps, WriterLock};
    #[pymodule_export]
    use crate::trak::{TrakArrays, TrakStore, trak_repair};
    #[pymodule_export]
    use crate::unflatten::unflatten;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("NODE_KINDS", PyTuple::new(py, crate::columns::NODE_KINDS)?)?;
        module.add("KEY_KINDS", PyTuple::new(py, crate::columns::KEY_KINDS)?)?;
        module.add("LEAF_KINDS", PyTuple::new(py, crate::leaves::LEAF_KINDS)?)?;
        module.add("DTYPES", PyTuple::new(py, Dtype::all().map(Dtype::name).collect::<Vec<_>>())?)?;
        module.add("SAFETENSORS_DTYPES", PyTuple::new(py, crate::safetensors::tags())?)?;
        module.add("LAYOUTS", PyTuple::new(py, regrow::engine::Layout::NAMES)?)?;
        let trailer_magic = regrow::formats::equinox::trailer::TRAILER_MAGIC;
        module.add("EQUINOX_TRAILER_MAGIC", pyo3::types::PyBytes::new(py, &trailer_magic))?;
        module.add("TREE_DEPTH_MAX", regrow::bytes::limits::TREE_DEPTH_MAX)
    }
}
