use super::*;
use varve_types::ShardOwner;

fn map(version: u64, servers: &[u64]) -> ShardMap {
    let server = |number: &u64| MapServer {
        number: *number,
        boot_id: String::new(),
        workers: vec![WorkerAddress { unix: Some(format!("/{number}")), tcp: None }; 2],
    };
    let servers = servers.iter().map(server).collect();
    ShardMap::new(version, servers, vec![ShardOwner { worker: 0, term: 1 }]).unwrap()
}

#[test]
fn connections_to_servers_of_both_maps_stay() {
    let servers = Servers::default();
    servers.follow(&map(1, &[1, 2]), |_| true);
    let (first, second) = (servers.find(1).unwrap(), servers.find(2).unwrap());
    servers.follow(&map(2, &[2, 3]), |_| true);
    assert!(servers.find(1).is_none() && servers.find(3).is_some());
    assert!(Arc::ptr_eq(&second, &servers.find(2).unwrap()));
    servers.follow(&map(3, &[1]), |_| true);
    assert!(first.identity != servers.find(1).unwrap().identity);
}

#[test]
fn a_lost_server_keeps_the_connections_to_others() {
    let servers = Servers::default();
    servers.follow(&map(1, &[1, 2]), |_| true);
    let (lost, other) = (servers.find(1).unwrap(), servers.find(2).unwrap());
    servers.lose(1);
    assert!(servers.find(3).is_none());
    assert!(lost.identity != servers.find(1).unwrap().identity);
    assert!(Arc::ptr_eq(&other, &servers.find(2).unwrap()));
}

/// Promise: the first call goes by the connection on which the server has welcomed the client.
#[test]
fn welcome_of_a_server_is_kept_for_its_map() {
    let (servers, map) = (Servers::default(), map(1, &[1, 2]));
    let welcomed = servers.welcomed(&map.servers()[1], true);
    servers.follow(&map, |_| true);
    assert!(Arc::ptr_eq(&welcomed, &servers.find(2).unwrap()));
    assert!(Arc::ptr_eq(&welcomed, &servers.welcomed(&map.servers()[1], true)));
}
