//! Shardings of arrays on devices, as data: nothing here needs a device.
//!
//! ```text
//! Sharding ──layout(shape)──> Layout ──region(position)──> Region        the part of the array on a device
//!                               │  ──replica(position)──> 0, 1, ..      the number of that copy, among equal ones
//!                               ├── Replicas, spread:  the process that writes each region
//!                               └── Wanted ──plan──> Plan               the parts of saved pieces that one process reads
//! Regions ──check_tiling──> a hole or an overlap, by its region;  ──chunk_shape──> the regular grid they lie on
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `mesh`, `spec` | [`Mesh`], [`PartitionSpec`]: named axes of devices, and the mesh axes that divide an array's axes |
//! | `kinds`, `json`, `words` | [`Sharding`], its JSON (as in Orbax' `_sharding`), and its text for people |
//! | `cuts`, `grid`, `layout` | one axis cut in parts; all axes; the parts on devices ([`Layout`]) |
//! | `tiling` | checks that regions fill an array; finds their regular grid |
//! | `distinct` | finds equal shardings among many |
//! | `writers` | the process that writes each region |
//! | `boxes`, `pieces`, `plan` | finding regions, the saved pieces, and the steps that give a process its regions |
//!
//! ```
//! use regrow_tree::array::Shape;
//! use regrow_tree::sharding::{Mesh, NamedSharding, PartitionSpec, Sharding};
//!
//! let mesh = Mesh::new([("x", 4), ("y", 2)]);
//! let spec = PartitionSpec::new([Some("x"), None]);
//! let sharding = Sharding::from(NamedSharding::new(mesh, spec));
//! assert_eq!(sharding.to_string(), "P('x', None) over x=4,y=2");
//!
//! let layout = sharding.layout(&Shape::new([64, 96])?)?;
//! assert_eq!(layout.shard_shape().dims(), [16, 96]);
//! assert_eq!(layout.region(3)?.to_string(), "[16:32,0:96]");      // the fourth device: x=1, y=1
//! assert_eq!(layout.replica(3), 1);                              // the third has the same part, as replica 0
//! # Ok::<(), regrow_base::Error>(())
//! ```
//!
//! Reading a wrong sharding is never an error, because a checkpoint can be read without it. The
//! error comes when a caller asks for the positions of parts ([`Sharding::layout`]).

mod boxes;
mod cuts;
mod distinct;
mod grid;
mod json;
mod kinds;
mod layout;
mod mesh;
mod pieces;
mod plan;
mod spec;
mod tiling;
mod words;
mod writers;

pub use distinct::DistinctShardings;
pub use grid::Grid;
pub use kinds::{NamedSharding, PositionalSharding, Sharding, SingleDeviceSharding, Split};
pub use layout::{Layout, Placement};
pub use mesh::{AxisType, Mesh};
pub use pieces::Pieces;
pub use plan::{Copied, Plan, Step, Wanted, plan};
pub use spec::{AxisSpec, PartitionSpec};
pub use tiling::{check_tiling, chunk_shape};
pub use writers::{Replicas, Write, spread};
