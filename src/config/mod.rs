//! Configuration: environment, `.env`, files, parsed once into valid types.

pub mod env;
pub mod secret;
pub mod workers_file;
