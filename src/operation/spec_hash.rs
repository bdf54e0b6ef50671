//! The kubelet's hash of a container's spec, as kubelets since 1.31 compute it.
//!
//! A program that creates a container from a changed spec must write the hash of the new spec on it,
//! otherwise the kubelet replaces it. Older kubelets hash the whole container: compare with a running
//! container before relying on this.

/// The offset basis and the prime of 32-bit FNV-1a.
const OFFSET_BASIS: u32 = 0x811c_9dc5;
const PRIME: u32 = 0x0100_0193;

/// The value of the kubelet's hash annotation for a container `name` whose spec has `image`. It is 32-bit FNV-1a in
/// lower case hex without leading zeros, over the bytes of the compact JSON of the two, written as Go prints a byte
/// slice (pkg/kubelet/container/helpers.go, `HashContainer`; verified against live kubelets).
pub fn of(name: &str, image: &str) -> String {
    // Names and references contain nothing that JSON would have to escape.
    let json = format!(r#"{{"image":"{image}","name":"{name}"}}"#);
    let bytes: Vec<_> = json.bytes().map(|byte| byte.to_string()).collect();
    let text = format!("([]uint8)[{}]", bytes.join(" "));
    let hash = text.bytes().fold(OFFSET_BASIS, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME));
    format!("{hash:x}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_what_kubelets_wrote() {
        for (name, image, hash) in [
            ("app", "localhost/app:v1", "a2f567d5"),
            ("app", "localhost/app:v2", "7adc962f"),
            ("app", "nginx:1.25", "e324a2d6"),
            ("app", "docker.io/library/nginx:1.25", "52a80b7"),
        ] {
            assert_eq!(super::of(name, image), hash, "{image}");
        }
    }
}
