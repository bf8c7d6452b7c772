//! Hash maps with the same order in every run, so that a simulation can replay an operator. Keys
//! are names and UIDs of objects; an attacker gains nothing by choosing them so that they collide.

use std::hash::{BuildHasherDefault, DefaultHasher};

type Fixed = BuildHasherDefault<DefaultHasher>;

pub type HashMap<K, V> = std::collections::HashMap<K, V, Fixed>;
pub type HashSet<K> = std::collections::HashSet<K, Fixed>;
