//! The client against a real server in this process, over real sockets and a real directory.

mod doubts;
mod errands;
mod exercise;
mod files;
mod late;
mod listings;
mod names;
mod once;
mod peers;
mod recovery;
mod settings;
mod settling;
mod shared;
mod site;
mod times;
mod ways;
mod whole;
