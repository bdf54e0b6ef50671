//! Attacks, carried out with exactly the rights that each of them names, and refused.

mod mirror;
