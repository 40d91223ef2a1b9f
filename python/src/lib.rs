//! regrow's Python extension. It converts arguments, calls the engine with core types, and returns
//! views.
//!
//! One call passes a whole tree between Python and Rust. The extension flattens and rebuilds common
//! containers and leaves in a fraction of a microsecond each. For all others it calls the Python
//! half (`python/regrow/`). Array data is never copied: saved data stays in the memory of its
//! Python owner, and NumPy gets views of loaded data.
//!
//! | module | does |
//! |---|---|
//! | `flatten` | takes a user's tree apart |
//! | `unflatten` | puts a tree together |
//! | `addresses` | maps by the addresses of Python objects |
//! | `location` | paths and URLs, with the options of their storage |
//! | `files` | files and folders that Python's own code puts in place or removes |
//! | `columns` | the structure of a tree, keys, kinds of nodes |
//! | `cache` | the folder that caches bytes of buckets |
//! | `shards` | the shards of JAX arrays on several devices |
//! | `gather` | the kinds of a user's leaves, and those that a template asks for, as columns |
//! | `leaves` | turns the columns into the engine's leaves, and back |
//! | `memory` | all `unsafe` code: Python's memory as [`Bytes`](bytes::Bytes), and the reverse |
//! | `options` | the caller's options |
//! | `checkpoint` | an opened checkpoint |
//! | `retry` | reads again if the checkpoint is replaced |
//! | `regions` | reads regions of leaves into the caller's memory |
//! | `background` | saves while Python continues |
//! | `items` | several items in one checkpoint |
//! | `convert` | converts from one layout to another |
//! | `copy` | copies a checkpoint to another place |
//! | `diff` | compares two checkpoints |
//! | `report` | checkpoints as an HTML page |
//! | `coordination` | messages between the processes of a job |
//! | `remove` | removes one checkpoint, or the remains of a save |
//! | `repair` | writes parity beside a checkpoint, and repairs with it |
//! | `seal` | checksums beside a checkpoint, and signatures |
//! | `list` | the checkpoints in a folder |
//! | `steps` | a folder of steps: its list, deletions, leases and lock |
//! | `manager` | the manager of a training loop's steps |
//! | `flax` | turns Flax' msgpack into Python's objects and back, without a checkpoint |
//! | `safetensors` | safetensors files as flat or nested dicts |
//! | `literal` | Python literals in files |
//! | `trak` | a TRAK store: rows, marks, flags |
//! | `pytree_data` | the entries of a data file's manifest |
//! | `equinox` | Equinox leaf files, for `regrow.equinox` |
//! | `command` | the command `regrow` |
//! | `watch` | progress callbacks and Ctrl-C during long work |
//! | `error` | turns errors into exceptions |
//!
//! All work of the engine releases the interpreter. The engine's threads end with the call, so a
//! later `fork` cannot break them. Only the threads of `background` and `manager` outlive a call. A
//! forked child does not have these threads.

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
mod files;
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
mod retry;
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
        EquinoxFile, jax_leaf_order, npy_header, open_equinox, parse_npy_header, write_equinox,
    };
    #[pymodule_export]
    use crate::files::{
        StagedFile, is_locked, put_checkpoint_file, put_file, remove_folder, set_mode, sweep_folder,
        sync_folder,
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
    use crate::location::{Location, layout_for, local_path, refuse_folder_named_like_a_file};
    #[pymodule_export]
    use crate::manager::{DueStep, Followed, Preemption, Run, Together};
    #[pymodule_export]
    use crate::memory::{MapBuffer, Slab};
    #[pymodule_export]
    use crate::pytree_data::{pytree_appears, pytree_entries, pytree_identity};
    #[pymodule_export]
    use crate::regions::{Regions, load_regions_into};
    #[pymodule_export]
    use crate::remove::remove;
    #[pymodule_export]
    use crate::repair::{add_parity, repair};
    #[pymodule_export]
    use crate::report::{ReportPage, report};
    #[pymodule_export]
    use crate::retry::{Attempt, read_unreplaced};
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
        regrow_layouts::tell_storage();
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("NODE_KINDS", PyTuple::new(py, crate::columns::NODE_KINDS)?)?;
        module.add("KEY_KINDS", PyTuple::new(py, crate::columns::KEY_KINDS)?)?;
        module.add("LEAF_KINDS", PyTuple::new(py, crate::leaves::LEAF_KINDS)?)?;
        module.add("DTYPES", PyTuple::new(py, Dtype::all().map(Dtype::name).collect::<Vec<_>>())?)?;
        module.add("SAFETENSORS_DTYPES", PyTuple::new(py, crate::safetensors::tags())?)?;
        module.add("LAYOUTS", PyTuple::new(py, regrow::engine::Layout::NAMES)?)?;
        let trailer_magic = regrow_layouts::equinox::trailer::TRAILER_MAGIC;
        module.add("EQUINOX_TRAILER_MAGIC", pyo3::types::PyBytes::new(py, &trailer_magic))?;
        module.add("TREE_DEPTH_MAX", regrow_base::bytes::limits::TREE_DEPTH_MAX)
    }
}
