//! Text and bytes.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use super::{NodeRef, Pytree, Restore, sequence};
use crate::array::{Array, Dtype, Shape};
use crate::error::Result;
use crate::tree::{Key, Leaf, LeafData, LeafKind, TreeBuilder};

macro_rules! texts {
    ($($text:ty, $from:expr;)*) => {$(
        impl Pytree for $text {
            fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
                build.leaf(key, Leaf::text(&**self))
            }

            fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
                let from: fn(&Arc<str>) -> Self = $from;
                text_of(node, restore).map(from)
            }
        }
    )*};
}

texts! {
    String, |text| text.as_ref().into();
    Box<str>, |text| text.as_ref().into();
    Arc<str>, Arc::clone;
    Cow<'static, str>, |text| Cow::Owned(text.as_ref().into());
}

/// Saved like any text. A load only checks that the text is equal, because it cannot make a
/// `'static` text.
impl Pytree for &'static str {
    fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
        build.leaf(key, Leaf::text(*self))
    }

    fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
        if let Some(text) = text_of(node, restore) {
            let help = "a value that the program has (use load_into), or a field of type Cow<'static, str>";
            restore.differs("value", help, format_args!("{text:?}"));
        }
        None
    }

    fn check(&self, node: NodeRef<'_>, restore: &mut Restore) {
        match text_of(node, restore) {
            Some(text) if **text != **self => {
                restore.differs("value", format_args!("{self:?}"), format_args!("{text:?}"));
            }
            _ => {}
        }
    }

    fn load_into(&mut self, node: NodeRef<'_>, restore: &mut Restore) {
        self.check(node, restore);
    }
}

fn text_of<'a>(node: NodeRef<'a>, restore: &mut Restore) -> Option<&'a Arc<str>> {
    match node.leaf().map(|leaf| &leaf.data) {
        Some(LeafData::Text(text)) => Some(text),
        _ => {
            restore.wrong_kind(node, "text");
            None
        }
    }
}

/// The bytes are shared: a save makes no copy, and a load returns a view of the map.
impl Pytree for Bytes {
    fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
        let array = Array::new(Dtype::UInt8, Shape::new(vec![self.len() as u64])?, self.clone())?;
        build.leaf(key, Leaf { kind: LeafKind::Bytes, ..Leaf::array(array) })
    }

    fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
        let array = sequence::array_of(node, Dtype::UInt8, restore)?;
        if array.shape().rank() != 1 {
            restore.differs("shape", "[n]", array.shape());
            return None;
        }
        sequence::bytes_of(array, Dtype::UInt8, restore)
    }
}
