//! One fenced table after another: what is stored, fetched, decided and committed.
