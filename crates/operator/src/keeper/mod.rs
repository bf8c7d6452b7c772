//! The keeper: what people wrote on a node survives the node.

pub mod apply;
mod audit;
pub mod board;
pub mod controller;
pub mod index;
mod migrate;
pub mod node;
pub mod observe;
pub mod past;
pub mod policies;
mod policy_status;
mod settle;
pub mod signatures;
mod signing;
mod survey;
mod webhook;
