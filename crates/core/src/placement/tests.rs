//! Behaviour of whole plans: against a simulated cluster, and rule by rule.

mod converge;
mod rules;
mod shortage;
mod sim;
mod stateful;
mod words;
