//! Behaviour of whole decisions: in a simulated cluster, and rule by rule.

mod controllers;
mod converge;
mod liveness;
mod owners;
mod rules;
mod shortage;
mod sim;
mod stateful;
mod words;
