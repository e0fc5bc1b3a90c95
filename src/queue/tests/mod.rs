//! Tables and properties of who may start now.

mod check;
mod matcher;
mod order;
mod window;
