//! Tuples of one to twelve values.

use super::{NodeRef, Pytree, Restore, derive_support};
use crate::error::Result;
use crate::tree::{Key, Leaf, TreeBuilder};

macro_rules! tuples {
    ($($len:literal: $($name:ident $value:ident $index:tt),*;)*) => {$(
        impl<$($name: Pytree),*> Pytree for ($($name,)*) {
            fn flatten(&self, key: Key, build: &mut TreeBuilder<Leaf>) -> Result<()> {
                derive_support::open_tuple(build, key)?;
                $(self.$index.flatten(Key::Index($index), build)?;)*
                build.close()
            }

            fn unflatten(node: NodeRef<'_>, restore: &mut Restore) -> Option<Self> {
                let items = derive_support::expect_tuple(node, $len, "a tuple", restore)?;
                $(let $value = derive_support::get_at(&items, $index, restore, None);)*
                Some(($($value?,)*))
            }

            fn check(&self, node: NodeRef<'_>, restore: &mut Restore) {
                let Some(items) = derive_support::expect_tuple(node, $len, "a tuple", restore) else { return };
                $(derive_support::check_at(&items, $index, &self.$index, false, restore);)*
            }

            fn load_into(&mut self, node: NodeRef<'_>, restore: &mut Restore) {
                let Some(items) = derive_support::expect_tuple(node, $len, "a tuple", restore) else { return };
                $(derive_support::load_at(&items, $index, &mut self.$index, restore);)*
            }
        }
    )*};
}

tuples! {
    1: A a 0;
    2: A a 0, B b 1;
    3: A a 0, B b 1, C c 2;
    4: A a 0, B b 1, C c 2, D d 3;
    5: A a 0, B b 1, C c 2, D d 3, E e 4;
    6: A a 0, B b 1, C c 2, D d 3, E e 4, F f 5;
    7: A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6;
    8: A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6, H h 7;
    9: A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6, H h 7, I i 8;
    10: A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6, H h 7, I i 8, J j 9;
    11: A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6, H h 7, I i 8, J j 9, K k 10;
    12: A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6, H h 7, I i 8, J j 9, K k 10, L l 11;
}
