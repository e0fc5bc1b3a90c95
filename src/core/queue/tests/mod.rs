//! Tables and properties of who may start now.

mod admission;
mod matcher;
mod order;
mod waiting;
