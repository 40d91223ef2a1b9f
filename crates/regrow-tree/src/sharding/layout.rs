//! The part of an array on each device, as JAX assigns the parts.
//!
//! ```text
//! mesh x=4,y=2   P(('x','y'), None)   part of axis 0 = 2x + y           no axis is left: one replica
//!                P('x')               part of axis 0 = x                 y is left: replica = y
//!                P(None, 'y')         part of axis 1 = y                 x is left: replica = x
//! ```
//!
//! The replica is the number, in C order, of a device's coordinates on the unused axes of the mesh.
//! JAX counts devices with equal regions in the order of the mesh, which gives the same numbers. If
//! an axis of the array has no elements, JAX treats all of its parts as equal. So a mesh axis that
//! divides such an axis also counts as unused.

use std::collections::HashSet;
use std::sync::Arc;

use super::cuts::Cuts;
use super::grid::Grid;
use super::kinds::{NamedSharding, PositionalSharding, Sharding, Split};
use super::mesh::device_count;
use super::spec::AxisSpec;
use crate::array::{Region, Shape};
use crate::error::{Error, Result};
use crate::text::brief;

/// The part of an array of one shape on each device. Its size does not depend on the number of
/// devices, because parts are computed.
#[derive(Debug, Clone)]
pub struct Layout {
    grid: Grid,
    /// For each axis of the array, the mesh axes that divide it, the slowest first.
    cut_by: Vec<Vec<MeshAxis>>,
    /// The mesh axes whose devices have copies of the same part, the slowest first.
    copies: Vec<MeshAxis>,
    device_count: u64,
    devices: Devices,
}

#[derive(Debug, Clone, Copy)]
struct MeshAxis {
    size: u64,
    /// The distance, in positions, between neighbours on this axis.
    stride: u64,
}

#[derive(Debug, Clone)]
enum Devices {
    Positions,
    Mesh(Arc<super::mesh::Mesh>),
    One(u64),
}

/// The part of an array on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The device's id, or its position in the mesh if ids are not known.
    pub device: u64,
    /// The part of the array.
    pub region: Region,
    /// The number of this copy among all copies of the part, from 0.
    pub replica: u64,
}

impl Sharding {
    /// The parts of an array of `shape` on the devices.
    ///
    /// # Errors
    /// `InvalidArgument` if the sharding is not valid (an axis that is not in the mesh or is used
    /// twice, a repeated device, inconsistent numbers) or does not match the shape (too many axes,
    /// a length that is not a multiple); `Unsupported` for unknown kinds.
    pub fn layout(&self, shape: &Shape) -> Result<Layout> {
        match self {
            Self::Named(named) => named_layout(named, shape),
            Self::SingleDevice(single) => Ok(Layout {
                grid: whole(shape),
                cut_by: vec![Vec::new(); shape.rank()],
                copies: Vec::new(),
                device_count: 1,
                devices: Devices::One(single.device_id()),
            }),
            Self::Positional(positional) => positional_layout(positional, shape),
            Self::Other(value) => Err(Error::unsupported(format!(
                "a sharding has an unknown kind or invalid values: {}",
                brief(&value.to_string())
            ))
            .help("give a sharding for your devices; the data can be read without one")),
        }
    }

    /// The shape of the longest part.
    ///
    /// # Errors
    /// The same as for [`Sharding::layout`].
    #[inline]
    pub fn shard_shape(&self, shape: &Shape) -> Result<Shape> {
        self.layout(shape).map(|layout| layout.shard_shape())
    }
}

impl Layout {
    /// The grid of the parts. Each cell is on one or several devices.
    #[inline]
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// The shape of the longest part. With even parts, the shape of all parts.
    #[inline]
    pub fn shard_shape(&self) -> Shape {
        self.grid.cell_shape()
    }

    /// The number of devices.
    #[inline]
    pub fn device_count(&self) -> u64 {
        self.device_count
    }

    /// The number of devices with each part.
    #[inline]
    pub fn replica_count(&self) -> u64 {
        self.copies.iter().map(|axis| axis.size).product()
    }

    /// The id of the device at a position of the mesh in C order, or the position if ids are not
    /// known.
    pub fn device(&self, position: u64) -> u64 {
        match &self.devices {
            Devices::Positions => position,
            Devices::Mesh(mesh) => {
                let at = usize::try_from(position).ok();
                at.and_then(|at| mesh.device_ids()?.get(at).copied()).unwrap_or(position)
            }
            Devices::One(id) => *id,
        }
    }

    /// The part on the device at a position. It may be empty.
    ///
    /// # Errors
    /// `InvalidArgument` if the mesh has no such position.
    pub fn region(&self, position: u64) -> Result<Region> {
        if position < self.device_count {
            return Ok(self.region_at(position));
        }
        Err(Error::invalid(format!("device {position} does not exist: the mesh has {}", self.device_count)))
    }

    /// The number of the copy on the device at a position, among all copies of its part, from 0.
    #[inline]
    pub fn replica(&self, position: u64) -> u64 {
        number(&self.copies, position)
    }

    /// The part on each device, in the order of the mesh.
    pub fn placements(&self) -> impl Iterator<Item = Placement> + '_ {
        (0..self.device_count).map(|position| Placement {
            device: self.device(position),
            region: self.region_at(position),
            replica: self.replica(position),
        })
    }

    pub(super) fn region_at(&self, position: u64) -> Region {
        self.grid.cell(self.cut_by.iter().map(|axes| number(axes, position)))
    }
}

/// The index, in C order, of a device's coordinates on some axes.
fn number(axes: &[MeshAxis], position: u64) -> u64 {
    axes.iter().fold(0, |number, axis| number * axis.size + position / axis.stride % axis.size)
}

fn whole(shape: &Shape) -> Grid {
    Grid::of_cuts(shape.clone(), shape.dims().iter().map(|&len| Cuts::in_parts(len, 1)).collect())
}

fn mesh_axes(shape: &[u64]) -> Vec<MeshAxis> {
    let mut stride = 1;
    let mut axes: Vec<MeshAxis> = shape
        .iter()
        .rev()
        .map(|&size| {
            let axis = MeshAxis { size, stride };
            stride *= size;
            axis
        })
        .collect();
    axes.reverse();
    axes
}

fn named_layout(named: &NamedSharding, shape: &Shape) -> Result<Layout> {
    let (mesh, spec) = (named.mesh(), named.spec());
    mesh.check()?;
    if spec.axes().len() > shape.rank() {
        return Err(Error::invalid("the partition spec has more axes than the array")
            .expected(format!("at most {} for {shape}", shape.rank()), format!("{spec}")));
    }
    let axes = mesh_axes(mesh.shape());
    let mut used = HashSet::new();
    let mut cuts = Vec::with_capacity(shape.rank());
    let mut cut_by = Vec::with_capacity(shape.rank());
    let mut spare: HashSet<usize> = (0..axes.len()).collect();
    let beyond = std::iter::repeat(&AxisSpec::Whole);
    for (at, (&len, axis_spec)) in shape.dims().iter().zip(spec.axes().iter().chain(beyond)).enumerate() {
        if *axis_spec == AxisSpec::Unconstrained {
            return Err(Error::invalid(format!("{spec} does not say how axis {at} is sharded"))
                .help("give the mesh axes that shard it, or None"));
        }
        let mut by = Vec::new();
        for name in axis_spec.names() {
            let known = || mesh.axis_names().join(", ");
            let number = mesh.axis(name).ok_or_else(|| {
                Error::invalid(format!("{spec} names an axis that the mesh does not have"))
                    .expected(format!("one of {}", known()), format!("{name:?}"))
            })?;
            if !used.insert(number) {
                return Err(Error::invalid(format!("{spec} uses the axis {name:?} twice"))
                    .help("a mesh axis can shard only one axis of the array"));
            }
            if len > 0 {
                spare.remove(&number);
                by.extend(axes.get(number).copied());
            }
        }
        let sizes: Vec<u64> = by.iter().map(|axis| axis.size).collect();
        let parts: u64 = sizes.iter().product();
        if named.split() == Split::Even && !len.is_multiple_of(parts) {
            return Err(Error::invalid(format!("{spec} shards axis {at} of {shape} into unequal parts"))
                .expected(format!("a multiple of {parts}"), format!("{len}"))
                .help("pad the array, shard another axis, or use ceil division"));
        }
        cuts.push(Cuts::in_nested_parts(len, &sizes));
        cut_by.push(by);
    }
    let mut copies: Vec<usize> = spare.into_iter().collect();
    copies.sort_unstable();
    Ok(Layout {
        grid: Grid::of_cuts(shape.clone(), cuts),
        cut_by,
        copies: copies.into_iter().filter_map(|axis| axes.get(axis).copied()).collect(),
        device_count: mesh.device_count()?,
        devices: if mesh.device_ids().is_some() { Devices::Mesh(mesh.clone()) } else { Devices::Positions },
    })
}

fn positional_layout(positional: &PositionalSharding, shape: &Shape) -> Result<Layout> {
    let sizes = positional.shape();
    let fits = sizes.len() == shape.rank()
        && sizes.iter().zip(shape.dims()).all(|(&size, &len)| size > 0 && len.is_multiple_of(size));
    if !fits {
        return Err(Error::invalid("a grid of devices without names does not fit the array")
            .expected(format!("a divisor of each length of {shape}"), format!("{sizes:?}")));
    }
    // Check the limit first: strides of a larger grid could overflow.
    let device_count = device_count(sizes)?;
    let axes = mesh_axes(sizes);
    let cuts = shape.dims().iter().zip(sizes).map(|(&len, &size)| Cuts::in_parts(len, size));
    Ok(Layout {
        grid: Grid::of_cuts(shape.clone(), cuts.collect()),
        cut_by: axes.into_iter().map(|axis| vec![axis]).collect(),
        copies: Vec::new(),
        device_count,
        devices: Devices::Positions,
    })
}
