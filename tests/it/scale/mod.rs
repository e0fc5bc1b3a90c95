//! A deployment under load, with the limits of AWS in virtual time.

mod table;
