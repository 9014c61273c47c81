use super::*;

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(work)
}

fn ask(method: &str, path: &str, headers: &[(&str, &str)]) -> StatusCode {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(()).expect("a request");
    let handle = PrometheusBuilder::new().build_recorder().handle();
    let (hosts, endpoint) = (HostCheck::default(), Arc::default());
    block_on(answer(&request, &hosts, [127, 0, 0, 1].into(), &handle, &endpoint)).status()
}

#[test]
fn metrics_answer_for_names_of_this_host_alone() {
    let local = ("host", "localhost:9000");
    for (method, path, headers, status) in [
        ("GET", "/metrics", &[local][..], 200),
        ("GET", "/", &[local], 200),
        ("GET", "/healthz", &[local], 200),
        ("GET", "/readyz", &[local], 503),
        ("GET", "/metrics", &[("host", "127.0.0.1:9000")], 200),
        ("GET", "/metrics", &[("host", "[::1]:9000")], 200),
        ("GET", "/metrics?name=x", &[local], 200),
        ("GET", "/else", &[local], 404),
        ("GET", "/metrics/more", &[local], 404),
        ("POST", "/metrics", &[local], 405),
        ("PUT", "/", &[local], 405),
        ("GET", "/metrics", &[("host", "evil.example")], 421),
        ("GET", "/metrics", &[("host", "localhost.evil.example:9000")], 421),
        ("GET", "/metrics", &[], 400),
        ("GET", "/metrics", &[local, ("origin", "http://localhost")], 403),
    ] {
        assert_eq!(ask(method, path, headers).as_u16(), status, "{method} {path} {headers:?}");
    }
}

/// Promise: `/readyz` says why a service is not ready, and `/metrics` has every source.
#[test]
fn endpoint_serves_sources_and_readiness() {
    let endpoint = Arc::new(Endpoint::default());
    let readiness = || block_on(Arc::clone(&endpoint).readiness());
    assert_eq!(readiness(), (StatusCode::SERVICE_UNAVAILABLE, "not ready: it is starting\n".to_owned()));
    endpoint.started(|| Err("3 of 64 shards have been opened so far".to_owned()));
    assert!(readiness().1.contains("3 of 64"));
    endpoint.started(|| Ok(()));
    assert_eq!(readiness().0, StatusCode::OK);
    endpoint.add(|| "varve_extra 1\n".to_owned());
    let text = endpoint.text();
    assert!(text.contains("\nvarve_extra 1\n") && text.contains("process_resident_memory_bytes "), "{text}");
}
