//! Arrays in shards, and saves of such arrays by several ranks.

use std::collections::BTreeMap;

use regrow::array::{Array, Dtype, Region, Shape, Shard};
use regrow::location::ToLocation;
use regrow::monitor::Monitor;
use regrow::tree::{Leaf, Tree};
use regrow::{Result, SaveOptions};
use regrow_layouts::WriterRank;
use regrow_storage::PublishOptions;

/// How an array is cut: its shape, its chunks, and how many chunks a shard has along each axis.
#[derive(Debug, Clone)]
pub struct Cut {
    pub shape: Vec<u64>,
    pub chunk: Vec<u64>,
    pub boxes: Vec<u64>,
}

impl Cut {
    pub fn shape(&self) -> Shape {
        Shape::new(self.shape.clone()).unwrap()
    }

    pub fn whole(&self) -> Array {
        let bytes: Vec<u8> =
            (0..self.shape().len_elements()).flat_map(|at| (at as u16).to_le_bytes()).collect();
        Array::new(Dtype::Int16, self.shape(), bytes.into()).unwrap()
    }

    /// The array as each process holds it that has replicas of all of it.
    pub fn replicated(&self) -> Array {
        let shard = Shard { region: Region::whole(&self.shape()), array: self.whole() };
        Array::sharded(Dtype::Int16, self.shape(), self.shape(), vec![shard], true).unwrap()
    }

    /// Where each shard lies.
    pub fn regions(&self) -> Vec<Region> {
        let lens: Vec<u64> = self.chunk.iter().zip(&self.boxes).map(|(chunk, count)| chunk * count).collect();
        let mut starts = vec![vec![]];
        for (&dim, &len) in self.shape.iter().zip(&lens) {
            starts = starts
                .into_iter()
                .flat_map(|start: Vec<u64>| {
                    (0..dim.div_ceil(len)).map(move |at| [start.clone(), vec![at * len]].concat())
                })
                .collect();
        }
        let region = |start: Vec<u64>| {
            let ends =
                start.iter().zip(&lens).zip(&self.shape).map(|((start, len), dim)| (start + len).min(*dim));
            let lens: Vec<u64> = ends.zip(&start).map(|(end, start)| end - start).collect();
            Region::new(start, lens).unwrap()
        };
        starts.into_iter().map(region).collect()
    }

    /// The array with every `count`th shard held by process `rank`.
    pub fn held_by(&self, rank: usize, count: usize) -> Array {
        let whole = self.whole();
        let shard = |region: Region| {
            let mut bytes = vec![0; region.len_elements() as usize * 2];
            whole.copy_region_c_order(&region, &mut bytes).unwrap();
            Shard { array: Array::new(Dtype::Int16, region.shape(), bytes.into()).unwrap(), region }
        };
        let own = self.regions().into_iter().enumerate().filter(|(at, _)| at % count == rank);
        let shards = own.map(|(_, region)| shard(region)).collect();
        Array::sharded(Dtype::Int16, self.shape(), Shape::new(self.chunk.clone()).unwrap(), shards, false)
            .unwrap()
    }
}

pub fn dict(arrays: impl IntoIterator<Item = (String, Array)>) -> Tree<Leaf> {
    super::dict(arrays.into_iter().map(|(name, array)| (name, Leaf::array(array))))
}

pub fn bytes_of(tree: &Tree<Leaf>) -> BTreeMap<String, (Vec<u64>, Vec<u8>)> {
    tree.iter()
        .map(|(path, leaf)| {
            let array = leaf.as_array().unwrap();
            (path.to_string(), (array.shape().dims().to_vec(), array.to_c_order().unwrap().to_vec()))
        })
        .collect()
}

pub fn options() -> SaveOptions {
    SaveOptions { not_durable: true, ..SaveOptions::default() }
}

/// Saves as `count` processes would, one after another. Nothing is synced.
pub fn save_by(
    count: usize,
    target: impl ToLocation,
    trees: &[Tree<Leaf>],
    options: &SaveOptions,
) -> Result<()> {
    save_shares(count, target, trees, &SaveOptions { not_durable: true, ..options.clone() })
}

/// Saves as `count` processes would, one after another.
pub fn save_shares(
    count: usize,
    target: impl ToLocation,
    trees: &[Tree<Leaf>],
    options: &SaveOptions,
) -> Result<()> {
    let at = target.to_location()?;
    let monitor = Monitor::new();
    regrow_layouts::tell_storage();
    let publish = PublishOptions {
        overwrite: options.overwrite,
        durable: !options.not_durable,
        ..PublishOptions::of_new(&monitor)
    };
    let writers = options.layout.format().roles().many_writers.unwrap();
    let own = at.publish_folder(publish)?;
    let ticket = own.ticket()?;
    for rank in (0..count).rev() {
        let writer = WriterRank { rank: rank as u32, count: count as u32 };
        if rank == 0 {
            writers.write_share(&trees[0], writer, &*own, options)?;
        } else {
            let joined = at.join_publication(&ticket, publish)?;
            writers.write_share(&trees[rank], writer, &*joined, options)?;
            joined.finish_share()?;
        }
    }
    writers.merge(&trees[0], &(0..count as u32).collect::<Vec<_>>(), &*own, options)?;
    own.commit()
}

pub fn rows(count: u64) -> Cut {
    Cut { shape: vec![count * 2, 6], chunk: vec![2, 3], boxes: vec![1, 1] }
}
