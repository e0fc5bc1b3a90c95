//! Tables and properties of who may start now.

mod admission;
mod check;
mod matcher;
mod order;
mod window;
