//! Shardings as text for people.
//!
//! ```text
//! P('x', None) over x=4,y=2        P(('x', 'y'),) over x=4,y=2, uneven parts
//! one device (cpu:0)               grid of 2x2 devices               GSPMDSharding
//! ```

use std::fmt;

use super::kinds::{Sharding, Split};
use super::spec::{AxisSpec, PartitionSpec};

impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(named) => {
                let mesh = named.mesh();
                write!(f, "{} over ", named.spec())?;
                if mesh.shape().is_empty() {
                    f.write_str("one device")?;
                }
                for (at, (name, size)) in mesh.axis_names().iter().zip(mesh.shape()).enumerate() {
                    write!(f, "{}{name}={size}", if at > 0 { "," } else { "" })?;
                }
                f.write_str(if named.split() == Split::CeilDivision { ", uneven parts" } else { "" })
            }
            Self::SingleDevice(single) => write!(f, "one device ({})", single.device()),
            Self::Positional(positional) => {
                let sizes: Vec<String> = positional.shape().iter().map(u64::to_string).collect();
                write!(f, "grid of {} devices", sizes.join("x"))
            }
            Self::Other(value) => match self.type_name() {
                "" => write!(f, "{value}"),
                name => f.write_str(name),
            },
        }
    }
}

impl fmt::Display for PartitionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("P(")?;
        for (at, axis) in self.axes().iter().enumerate() {
            write!(f, "{}{axis}", if at > 0 { ", " } else { "" })?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for AxisSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("None"),
            Self::Axis(name) => write!(f, "'{name}'"),
            Self::Axes(names) => {
                f.write_str("(")?;
                for (at, name) in names.iter().enumerate() {
                    write!(f, "{}'{name}'", if at > 0 { ", " } else { "" })?;
                }
                f.write_str(if names.len() == 1 { ",)" } else { ")" })
            }
            Self::Unconstrained => f.write_str("UNCONSTRAINED"),
        }
    }
}
