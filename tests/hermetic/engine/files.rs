//! Answers that are too large: the process keeps its memory.

use inplace::api::status::Phase;

use super::super::runtime::Exec;
use super::{Shop, pod};

/// What a handler prints is nobody's business, and is not kept in memory.
#[tokio::test]
async fn a_pre_stop_handler_that_prints_much_is_not_read() {
    let shop = Shop::of(pod().pre_stop(r#"{"exec":{"command":["head"]}}"#)).await;
    shop.fake.exec(|_, _| Exec::ok(&"x".repeat(15 << 20)));
    let status = shop.restart().await.unwrap();
    assert_eq!(status.phase, Phase::Succeeded, "{status:#?}");
    assert!(status.message.contains("printed more than 64 KiB"), "{}", status.message);
    assert_eq!(shop.fake.calls("ExecSync").len(), 1);
    shop.sane("printed");
}
