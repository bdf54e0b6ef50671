//! Renders any text with any argument: the text is rendered completely or not at all.

use inplace::api::hook_template::Argument;
use inplace::hook::template::render;

pub(super) fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let (value, text) = text.split_once('\n').unwrap_or(("value", text));
    let argument =
        |name: &str, value: Option<&str>| Argument { name: name.to_owned(), value: value.map(str::to_owned) };
    let args =
        [argument("PodIP", Some(value)), argument("PodContainer[0]", Some("app")), argument("bare", None)];
    match render(text, &args) {
        Ok(rendered) if !text.contains("{{") => assert_eq!(rendered, text),
        // A placeholder inside a value is not expanded.
        Ok(rendered) if value.contains("{{") && text == "{{ args.PodIP }}" => assert_eq!(rendered, value),
        Ok(_) => assert!(text.contains("}}")),
        Err(_) => assert!(text.contains("{{")),
    }
}
