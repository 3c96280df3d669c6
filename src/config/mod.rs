//! Configuration: environment, `.env`, files, parsed once into valid types.
