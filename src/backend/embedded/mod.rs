//! Adapters that need no service: they live in this process and, for storage, in one SQLite file.
