use super::*;
use crate::workloads::campaign::tests::on_threads;

fn config(path: &std::path::Path) -> MixedConfig {
    MixedConfig {
        campaign: on_threads(&[path]),
        rate_hz: 40.0,
        seconds: 0.5,
        model: "64x32xu16".to_owned(),
        others: OtherUser::ALL.to_vec(),
        repeat: 1,
    }
}

#[test]
fn experiment_is_measured_alone_and_beside_each_user() {
    let dir = tempfile::tempdir().unwrap();
    let results = run(&config(dir.path())).unwrap();
    assert_eq!(results.error, None);
    let of = |metric: &str| results.results.iter().filter(|found| found.metric == metric).collect::<Vec<_>>();
    let lateness = of("lateness_p99");
    assert_eq!(lateness.len(), 2, "alone and mixed");
    assert_eq!((lateness[0].clients, lateness[1].clients), (1, 5));
    assert_eq!(of("missed").len(), 2);
    for user in OtherUser::ALL {
        assert_eq!(of(user.name()).len(), 1, "{user} worked");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn experiment_without_other_users_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let alone = MixedConfig { others: Vec::new(), ..config(dir.path()) };
    assert!(run(&alone).unwrap_err().to_string().contains("other user"));
    let fast = MixedConfig { rate_hz: f64::NAN, ..config(dir.path()) };
    assert!(run(&fast).unwrap_err().to_string().contains("at most"));
    assert!("painter".parse::<OtherUser>().unwrap_err().contains("reader, unpacker"));
}
