use super::*;

fn ask(method: &str, path: &str, headers: &[(&str, &str)]) -> StatusCode {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(()).expect("a request");
    let handle = PrometheusBuilder::new().build_recorder().handle();
    answer(&request, &HostCheck::default(), [127, 0, 0, 1].into(), &handle).status()
}

#[test]
fn metrics_answer_for_names_of_this_host_alone() {
    let local = ("host", "localhost:9000");
    for (method, path, headers, status) in [
        ("GET", "/metrics", &[local][..], 200),
        ("GET", "/", &[local], 200),
        ("GET", "/health", &[local], 200),
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
