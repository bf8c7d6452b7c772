//! Hash maps whose order is the same in every run, so that a simulation can replay what an operator did. Keys are names and
//! UIDs of objects: nobody gains anything by choosing them so that they collide.

use std::hash::{BuildHasherDefault, DefaultHasher};

type Fixed = BuildHasherDefault<DefaultHasher>;

pub type HashMap<K, V> = std::collections::HashMap<K, V, Fixed>;
pub type HashSet<K> = std::collections::HashSet<K, Fixed>;
