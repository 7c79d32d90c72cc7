//! The `courant` command.

fn main() {}
