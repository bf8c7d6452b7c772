pub mod programs;
pub mod versions;
