//! The subcommands of `skald`.
