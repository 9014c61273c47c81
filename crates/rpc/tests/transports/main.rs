//! One suite that every transport passes, and what each of them does about peers that break the rules.

mod cost;
mod false_servers;
mod fixture;
mod handshakes;
mod hostile;
mod peers;
mod suite;

macro_rules! of_each_transport {
    ($($promise:ident),* $(,)?) => {
        mod unix { $(#[test] fn $promise() { crate::suite::$promise(crate::fixture::Transport::Unix) })* }
        mod shared_memory { $(#[test] fn $promise() { crate::suite::$promise(crate::fixture::Transport::SharedMemory) })* }
        mod tcp { $(#[test] fn $promise() { crate::suite::$promise(crate::fixture::Transport::Tcp) })* }
        mod in_process { $(#[test] fn $promise() { crate::suite::$promise(crate::fixture::Transport::InProcess) })* }
    };
}

of_each_transport!(
    broken_connection_ends_all_calls,
    deadline_ends_a_call,
    dropped_call_is_cancelled,
    full_connection_makes_callers_wait,
    long_request_is_refused,
    messages_of_all_lengths_pass,
    replies_come_in_any_order,
    restarted_server_is_found,
    server_limits_calls_in_flight,
    server_without_memory_takes_one_call,
    silent_server_is_given_up,
    slow_reader_slows_its_server,
    stopping_server_answers_its_calls,
    thousand_calls_are_in_flight,
);
