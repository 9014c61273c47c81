pub fn render(_r: &super::Report) -> String {
    String::new()
}
