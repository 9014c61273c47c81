//! Tests of the client with a real server in this process, over real sockets and a real directory.

mod exercise;
mod files;
mod followed;
mod io_modes;
mod late;
mod listings;
mod lost_replies;
mod names;
mod peers;
mod recovery;
mod settings;
mod several_servers;
mod shared;
mod site;
mod size_check;
mod size_recording;
mod threads;
mod times;
mod unknown_outcomes;
