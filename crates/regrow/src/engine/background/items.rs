//! Checkpoints of several items, saved in the background. The caller begins the checkpoint, and the
//! saving thread commits it.

use std::time::Instant;

use super::job::{Job, Work};
use super::{AsyncOptions, AsyncSaver, Blocked, SaveHandle};
use crate::engine::{ItemsSave, SaveOptions};
use crate::error::Result;
use crate::tree::{Leaf, Tree};

impl AsyncSaver {
    /// Adds trees to a checkpoint of items and commits it, in the background. The caller must have
    /// added all other items. Does not wait for another save: call
    /// [`wait_for_room`](Self::wait_for_room) before beginning the items. Each tree has its own
    /// save options, which replace those in `options`.
    ///
    /// # Errors
    /// The errors of [`save`](Self::save). After an error all files of the checkpoint are removed.
    pub fn save_items(
        &self,
        items: ItemsSave,
        trees: Vec<(String, Tree<Leaf>, SaveOptions)>,
        options: &AsyncOptions,
    ) -> Result<SaveHandle> {
        let since = Instant::now();
        self.check_process(&items.location().describe())?;
        let mut blocked = Blocked { seconds: 0.0, ..options.before };
        let mut works = Vec::new();
        for (name, tree, save) in trees {
            let (work, copied_bytes) = self.snapshot(tree, save, options)?;
            blocked.copied_bytes += copied_bytes;
            works.push((name, work));
        }
        blocked.seconds = options.before.seconds + since.elapsed().as_secs_f64();
        let (location, monitor) = (items.location().clone(), items.monitor().clone());
        let work = Work::Items(Box::new(items), works, options.before_commit.clone());
        Ok(self.begin(Job::new(location, work, &monitor, options.on_end.clone(), blocked)))
    }
}
